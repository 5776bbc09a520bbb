-- bulk_commands.lua: commands with many values, in batches: Lua's `unpack` fails for some 8,000 values.

local BATCH_SIZE = 4000

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
