-- fan_out_progress.lua: reads the record of a fan-out.
-- KEYS  1   record of the fan-out, see `fan_outs.lua`
--       2   its pause
-- Reply {now (us), for how long (us) it is paused, {field, value, ...}}; no fields if there is no record

local pause = pause_left(KEYS[2], redis.call('GET', KEYS[2]))
return { format_integer(now), format_integer(pause), redis.call('HGETALL', KEYS[1]) }
