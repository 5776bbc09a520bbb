-- plain.lua: the least that a decision by GCRA can be, and by that the measure of others.
--
-- KEYS  1   string: the theoretical arrival time (us)
-- ARGV  1   emission interval (us)
--       2   burst
-- Reply {1, remaining}    allowed
--       {0, wait (us)}    refused

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local room = now + ARGV[1] * ARGV[2] - tat
if room < 0 then
  return { 0, -room }
end
redis.call('SET', KEYS[1], tat, 'PX', math.ceil((tat - now) / 1000))
return { 1, room / ARGV[1] }
