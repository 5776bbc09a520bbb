-- look.lua: everything the server keeps, with what is packed in it unpacked.
--
-- Reply {key, milliseconds to live or -1, content}, ...: of hashes, sorted sets, lists and sets what
-- they hold, one after the other; of a string itself.

local unpacked = {
  -- line, message
  messages = function(value)
    local entry = cmsgpack.unpack(value)
    return { entry[1], entry[5] }
  end,
  -- line, task id, message
  claims = function(value)
    local line, _, id, _, packed = unpack(cmsgpack.unpack(value))
    return { line, id, cmsgpack.unpack(packed)[5] }
  end,
  -- line, message
  quarantine = function(value)
    local line, _, _, _, packed = unpack(cmsgpack.unpack(value))
    return { line, cmsgpack.unpack(packed)[5] }
  end,
  -- of the limit at which it waits: waiting, backlog
  lines = function(value)
    local limit = cmsgpack.unpack(string.sub(value, 2)).limits[string.byte(value)]
    return { limit[8], limit[7] }
  end,
  ['waiting-lists'] = function(value)
    return cmsgpack.unpack(value)
  end,
}

local function content(key, kind)
  local type = redis.call('TYPE', key).ok
  if type == 'string' then
    return redis.call('GET', key)
  elseif type == 'list' then
    return redis.call('LRANGE', key, 0, -1)
  elseif type == 'set' then
    return redis.call('SMEMBERS', key)
  elseif type == 'stream' then
    return redis.call('XRANGE', key, '-', '+')
  elseif type == 'zset' then
    return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  end
  local found = redis.call('HGETALL', key)
  for i = 2, unpacked[kind] and #found or 0, 2 do
    found[i] = unpacked[kind](found[i])
  end
  return found
end

local rows = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = string.match(key, '^[^:]*:([%a-]+)')
  rows[#rows + 1] = { key, redis.call('PTTL', key), content(key, kind) }
end
return rows
