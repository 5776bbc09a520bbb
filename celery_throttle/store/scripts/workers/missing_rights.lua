-- missing_rights.lua: finds the commands of the scripts that the user has no right to run. Without a right a script
-- fails in the middle, and what it has done until then stays done.
-- KEYS  1   a key that nothing else uses; it expires in a second
-- ARGV  1   a channel that nobody listens on
-- Reply the names of the commands

local key, missing = KEYS[1], {}

-- Try a command. Returns whether the user may run it: errors of another kind do not count.
local function may(...)
  local reply = redis.pcall(...)
  local refused = type(reply) == 'table' and reply.err
    and (string.find(reply.err, 'NOPERM', 1, true) or string.find(reply.err, 'ermission', 1, true)
      or string.find(reply.err, 'user executing the script', 1, true))
  if refused then
    missing[#missing + 1] = (...)
  end
  return not refused
end

-- A server that is out of memory runs a script whose first write needs no memory.
may('DEL', key)
-- From now on the key is a string: most of the other writes are errors and do nothing.
local written = may('SET', key, 'x', 'PX', 1000)
for _, command in ipairs({
  { 'TIME' }, { 'PUBLISH', ARGV[1], '' }, { 'EXISTS', key }, { 'GET', key }, { 'MGET', key },
  { 'PEXPIRE', key, 1000 }, { 'PERSIST', key .. '+' },
  { 'HDEL', key, '' }, { 'HEXISTS', key, '' }, { 'HGET', key, '' }, { 'HGETALL', key }, { 'HKEYS', key },
  { 'HLEN', key }, { 'HMGET', key, '' }, { 'HSCAN', key, 0 }, { 'HVALS', key },
  { 'LLEN', key }, { 'LTRIM', key, 0, -1 }, { 'LRANGE', key, 0, 0 }, { 'SREM', key, '' }, { 'SSCAN', key, 0 },
  { 'XREVRANGE', key, '+', '-' }, { 'ZCARD', key }, { 'ZCOUNT', key, 0, 0 }, { 'ZMSCORE', key, '' }, { 'ZRANGE', key, 0, 0 },
  { 'ZRANK', key, '' }, { 'ZREM', key, '' }, { 'ZREMRANGEBYSCORE', key, 0, 0 }, { 'ZSCORE', key, '' },
}) do
  may(unpack(command))
end
for _, command in ipairs(written and {
  { 'HINCRBY', key, '', 1 }, { 'HSET', key, '', '' }, { 'HSETNX', key, '', '' }, { 'INCRBY', key, 1 },
  { 'RPUSH', key, '' }, { 'SADD', key, '' }, { 'XADD', key, '*', '', '' }, { 'ZADD', key, 0, '' },
  { 'ZINCRBY', key, 1, '' },
} or {}) do
  may(unpack(command))
end
return missing
