-- pause.lua: pauses a limit, or one key of it, for everyone. Never shortens a pause: a call that would is no change.
-- uses: extend_pause, changes
-- KEYS  1   the pause
--       2   origin of the pause: when (us) it was made, and JSON: who made it, and why
--       3   zset: paused keys of the limit's name -> end of the pause (us)
--       4   stream: changes, see `changes.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   for how long (us); ENDLESS_US of `celery_throttle/limits/duration.py` until it is resumed
--       3   field of the limit and key
--       4   the key; '' for the limit itself
--       5   about: JSON, who does it and why
-- Reply for how long (us) it is paused now.

local key = ARGV[4] ~= '' and ARGV[4] or nil
-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('ZREM', KEYS[3], '')
local us = tonumber(ARGV[2])
local rest, before = extend_pause({ KEYS[1], KEYS[2], KEYS[3], key }, us, ARGV[5])
if us >= before then
  record_change('pause', ARGV[3], format_integer(before), format_integer(rest), ARGV[5])
end
return rest
