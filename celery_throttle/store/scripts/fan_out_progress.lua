-- fan_out_progress.lua: what is known of a fan-out.
-- uses: pauses
--
-- KEYS  1   record of the fan-out, see `fan_out.lua`
--       2   until when (us) it is paused
-- ARGV  1   now (us), or '' for the server's clock
-- Reply {now (us), how long (us) it is paused, {field, value, ...}}; no fields if nothing is known of it

local now = clock(ARGV[1])
local paused = paused_for(KEYS[2], redis.call('GET', KEYS[2]), now, ARGV[1])
return { whole(now), whole(paused), redis.call('HGETALL', KEYS[1]) }
