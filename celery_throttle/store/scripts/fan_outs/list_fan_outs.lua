-- list_fan_outs.lua: reads the records of all fan-outs, some at a time.
-- uses: pauses
-- KEYS  1   zset: fan-outs, see `fan_out_index.lua`
--       2   head of their records
--       3   head of their pauses
-- ARGV  1   now (us), or '' for the server's clock
--       2   how many to pass over
--       3   how many to look at
-- Reply {now (us), how many there are, {encoded name, for how long (us) it is paused, {field, value, ...}}, ...}; one
--       whose record has expired is left out

local first = tonumber(ARGV[2])
local reply = { format_integer(now), redis.call('ZCARD', KEYS[1]) }
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], first, first + ARGV[3] - 1)) do
  local record, pause = redis.call('HGETALL', KEYS[2] .. name), KEYS[3] .. name
  if #record > 0 then
    reply[#reply + 1] = { name, format_integer(pause_left(pause, redis.call('GET', pause))), record }
  end
end
return reply
