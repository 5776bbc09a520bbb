-- list_keys.lua: lists keys of a limit: those with most waiting tasks, those that are paused, or those with a definition
-- or a weight of their own.
-- KEYS  1   zset: totals/keys, paused or own of the limit
-- ARGV  1   how many to pass over
--       2   how many to list at most
-- Reply {how many there are, key, score, ...}, the highest score first. The key '' has the sum of the waiting tasks.

local first = tonumber(ARGV[1])
local found = redis.call('ZRANGE', KEYS[1], first, first + ARGV[2] - 1, 'REV', 'WITHSCORES')
return { redis.call('ZCARD', KEYS[1]), unpack(found) }
