-- resume.lua: lifts the pause of a limit, or of one key of it, and nothing else. Workers recheck the lines that wait:
-- they would not do so by themselves behind a pause without end.
-- uses: recheck_name
-- KEYS  1   the pause
--       2   set: keys `waits` of the limit's name; for one key its `waits`
-- ARGV  1   now (us), or '' for the server's clock
--       2   '1' for one key
-- Reply {1 if it was paused, else 0; the cursor to go on with by `recheck_waiters.lua`, '0' at the end}

local ends, cursor = tonumber(redis.call('GET', KEYS[1]) or 0), '0'
-- First, since a server that is out of memory runs a script whose first write frees memory: the tasks behind this
-- pause may be what fills it. If the script fails after this, call it again.
redis.call('DEL', KEYS[1])
if ARGV[2] == '1' then
  recheck(KEYS[2])
else
  cursor = recheck_name(KEYS[2], '0')
end
return { math.floor(ends) > now and 1 or 0, cursor }
