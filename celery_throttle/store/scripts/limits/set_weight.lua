-- set_weight.lua: sets the weight of the lines that need a limit, or one key of it.
-- KEYS  1   hash: definitions of limits
-- ARGV  1   'weight ' and the field of the limit and key
--       2   weight; '' removes it

if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
