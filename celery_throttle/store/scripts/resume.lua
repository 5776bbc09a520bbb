-- resume.lua: lift the pause of a limit (or of one key of it), and nothing else. Tasks that wait are looked at
-- again by the same call: those behind a pause that has no end would not be looked at by themselves.
-- uses: recheck
--
-- KEYS  1   until when (us) it is paused
--       2   set: keys `waits` of the limit's name; of one key its own `waits`
-- ARGV  1   now (us), or '' for the server's clock
--       2   '1' if it is one key
-- Reply {1 if it was paused, else 0; the cursor to go on with by `recheck_waiters.lua`, '0' at the end}

local now = clock(ARGV[1])
local till, cursor = tonumber(redis.call('GET', KEYS[1]) or 0), '0'
-- First, since a server that is out of memory carries out a script whose first write takes something away:
-- it may be the tasks behind this pause that fill it. If the script ends before the rest, call it again.
redis.call('DEL', KEYS[1])
if ARGV[2] == '1' then
  look_again(KEYS[2], now)
else
  cursor = look_again_from(KEYS[2], '0', now)
end
return { till > now and 1 or 0, cursor }
