-- copies.lua: lets the task that waits in a line do so many times more, as if each had been parked.
--
-- KEYS  1   zset: the line
--       2   hash: the queue's messages
--       3   string: the backlog of the limit at which the line waits
-- ARGV  1   first number
--       2   last number
-- The ids are the numbers.

local id, score = unpack(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES'))
local entry = cmsgpack.unpack(redis.call('HGET', KEYS[2], id))
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local copy = string.format('%.0f', number)
  entry[6] = tonumber(score) + number
  redis.call('HSET', KEYS[2], copy, cmsgpack.pack(entry))
  redis.call('ZADD', KEYS[1], string.format('%.0f', entry[6]), copy)
end
redis.call('INCRBY', KEYS[3], ARGV[2] - ARGV[1] + 1)
