-- pause.lua: pauses a limit, or one key of it, for everyone. Never shortens a pause.
-- uses: extend_pause, fan_out_waiting
-- KEYS  1   the pause
--       2   for a fan-out its record, see `fan_out.lua`: the pause lasts as long as the record at most
-- ARGV  1   now (us), or '' for the server's clock
--       2   for how long (us); ENDLESS_US of `celery_throttle/limits/duration.py` until it is resumed
-- Reply for how long (us) it is paused now; -1 if the record does not exist.

local pause, record = KEYS[1], KEYS[2]
if record and redis.call('EXISTS', record) == 0 then
  return -1
end
local rest = extend_pause(pause, tonumber(ARGV[2]))
if record then
  change_fan_out_waiting(record, 0) -- lets the pause expire with the record
end
return rest
