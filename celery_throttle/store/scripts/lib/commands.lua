-- commands.lua: commands with many values, and for values that may be large.

-- Lua's `unpack` fails for some 8,000 values.
local BATCH_SIZE = 4000

-- How many bytes of tasks a call reads, as the server does nothing else meanwhile. A call goes on to another task until
-- it has read as many; so it reads one task at least, whatever its size.
local BATCH_BYTES = 1000000

-- Let the script work on a server that is out of memory: such a server refuses a script at its first write, unless
-- that needs no memory, as this one, which changes nothing. So what frees memory or keeps a promise begins with it.
local function work_without_memory()
  redis.call('DEL', KEYS[1] .. '+none')
end

-- Run a command with all values, in as many calls as it takes. The values may be pairs.
local function call_with(command, key, values)
  for from = 1, #values, BATCH_SIZE do
    redis.call(command, key, unpack(values, from, math.min(#values, from + BATCH_SIZE - 1)))
  end
end

-- The reply of HMGET or MGET for values[from] to values[to]; `key` is the hash, nil for MGET.
local function read_many(command, key, values, from, to)
  local all
  for first = from, to, BATCH_SIZE do
    local last, found = math.min(to, first + BATCH_SIZE - 1), nil
    if key then
      found = redis.call(command, key, unpack(values, first, last))
    else
      found = redis.call(command, unpack(values, first, last))
    end
    for i = 1, all and #found or 0 do
      all[#all + 1] = found[i]
    end
    all = all or found
  end
  return all or {}
end

-- HSCAN for hashes whose values have tasks in them. Returns the cursor of the next call, '0' at the end, and {field,
-- value, ...}: of about `count` fields at most.
local function scan_hash(key, cursor, count)
  local found, bytes = {}, 0
  for _ = 1, count do
    local step = redis.call('HSCAN', key, cursor, 'COUNT', 1)
    cursor = step[1]
    for _, text in ipairs(step[2]) do
      found[#found + 1], bytes = text, bytes + #text
    end
    if cursor == '0' or bytes >= BATCH_BYTES then
      break
    end
  end
  return cursor, found
end
