-- set_weight.lua: the weight of the lines that need a limit, or one key of it.
--
-- KEYS  1   hash: definitions of limits
-- ARGV  1   field of the weight: 'weight ', then that of the limit and key
--       2   weight, or '' for none of its own

if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
