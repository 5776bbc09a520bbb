-- is_stored.lua: tests whether anything is stored of one key of a limit.
-- KEYS  1   hash: definitions of limits in force, and weights
--       then  the keys that the key of the limit has while it is used, is paused or has waiting tasks
-- ARGV  1   field of the limit and key
-- Reply 1 or 0

local own = redis.call('EXISTS', unpack(KEYS, 2)) + redis.call('HEXISTS', KEYS[1], ARGV[1])
return own + redis.call('HEXISTS', KEYS[1], 'weight ' .. ARGV[1]) > 0 and 1 or 0
