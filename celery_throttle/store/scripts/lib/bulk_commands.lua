-- bulk_commands.lua: commands with many values. Lua can pass on some 8,000 at once, then the script ends with an error.
--
-- Library, no keys and no arguments of its own.

local MOST_VALUES = 4000

-- Calls a command with values, in several calls if they are many. These may be pairs.
local function call_with(command, key, values)
  for from = 1, #values, MOST_VALUES do
    redis.call(command, key, unpack(values, from, math.min(#values, from + MOST_VALUES - 1)))
  end
end

-- What HMGET or MGET reply for the values of a table from one place to another; `key` is the hash, if any.
local function read_many(command, key, values, from, to)
  local all
  for first = from, to, MOST_VALUES do
    local last, found = math.min(to, first + MOST_VALUES - 1), nil
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
