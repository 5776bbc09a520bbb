-- pause.lua: pauses a limit, one key of it, or a fan-out, for everyone. Never shortens a pause: a call that would is no
-- change.
-- KEYS  1   the pause
--       2   origin of the pause: when (us) it was made, and JSON: who made it, and why
--       3   zset: paused keys of the limit's name -> end of the pause (us)
--       4   stream: changes, see `definitions.lua`
--       5   of a fan-out its record, see `fan_outs.lua`: the pause and its origin last as long as the record at most
-- ARGV  2   for how long (us); ENDLESS_US of `celery_throttle/limits/duration.py` until it is resumed
--       3   field of the limit and key, or the fan-out, as the log of changes names it
--       4   the key; '' for the limit itself and for fan-outs
--       5   about: JSON, who does it and why
-- Reply for how long (us) it is paused now; -1 if the record of the fan-out does not exist

local us, record, key = tonumber(ARGV[2]), KEYS[5], ARGV[4] ~= '' and ARGV[4] or nil
if record and redis.call('EXISTS', record) == 0 then
  return -1
end
work_without_memory()
local rest, before = extend_pause({ KEYS[1], KEYS[2], KEYS[3], key }, us, ARGV[5])
if us >= before then
  record_change('pause', ARGV[3], format_integer(before), format_integer(rest), ARGV[5])
end
if record then
  redis.call('HSET', record, 'pause_origin', KEYS[2])
  change_fan_out_waiting(record, 0) -- lets both expire with the record
end
return rest
