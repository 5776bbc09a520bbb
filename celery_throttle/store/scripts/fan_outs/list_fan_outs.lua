-- list_fan_outs.lua: reads the records of all fan-outs, some at a time.
-- KEYS  1   zset: fan-outs, see `enlist.lua`
-- ARGV  2   how many to pass over
--       3   how many to look at
-- Reply {now (us), how many there are, {for how long (us) it is paused, {field, value, ...}}, ...}; one whose record has
--        expired is left out

local first = tonumber(ARGV[2])
local reply = { format_integer(now), redis.call('ZCARD', KEYS[1]) }
for _, record in ipairs(redis.call('ZRANGE', KEYS[1], first, first + ARGV[3] - 1)) do
  local pause, fields = redis.call('HGET', record, 'pause'), redis.call('HGETALL', record)
  if pause then
    reply[#reply + 1] = { format_integer(pause_left(pause, redis.call('GET', pause))), fields }
  end
end
return reply
