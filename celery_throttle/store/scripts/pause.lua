-- pause.lua: stop a limit (or one key of it) for everyone until a time; never shortens a pause.
-- uses: pauses, fan_out
--
-- KEYS  1   until when (us) it is paused
--       2   for a fan-out its record, see `fan_out.lua`: it is paused for as long as it is known at most
-- ARGV  1   now (us), or '' for the server's clock
--       2   how long (us); ENDLESS of `celery_throttle/operations/changes.py` until it is resumed
-- Reply how long (us) it is now paused; -1 if nothing is known of the fan-out.

local now, record = clock(ARGV[1]), KEYS[2]
if record and redis.call('EXISTS', record) == 0 then
  return -1
end
local rest = pause_for(KEYS[1], tonumber(ARGV[2]), now, ARGV[1])
if record then
  fan_out_waits(record, 0, ARGV[1])
end
return rest
