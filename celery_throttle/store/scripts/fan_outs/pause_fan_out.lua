-- pause_fan_out.lua: pauses a fan-out for everyone. Never shortens a pause: a call that would is no change.
-- uses: extend_pause, fan_out_waiting, changes
-- KEYS  1   its pause
--       2   origin of the pause, see `pause.lua`
--       3   record of the fan-out, see `fan_out.lua`: the pause and its origin last as long as the record at most
--       4   stream: changes, see `changes.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   for how long (us), as for `pause.lua`
--       3   the fan-out, as the log of changes names it
--       4   about: JSON, who does it and why
-- Reply for how long (us) it is paused now; -1 if the record does not exist.

local record = KEYS[3]
if redis.call('EXISTS', record) == 0 then
  return -1
end
-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', record, '')
local us = tonumber(ARGV[2])
local rest, before = extend_pause({ KEYS[1], KEYS[2] }, us, ARGV[4])
if us >= before then
  record_change('pause', ARGV[3], format_integer(before), format_integer(rest), ARGV[4])
end
redis.call('HSET', record, 'pause_origin', KEYS[2])
change_fan_out_waiting(record, 0) -- lets both expire with the record
return rest
