-- fan_out_index.lua: the index of fan-outs: a zset of their encoded names, by when (us) their records were last found.
-- uses: clock
-- A record expires by itself and leaves its name here, so each new fan-out looks after some of the others.

-- How many others a new fan-out looks after, and how long (ms) the index is kept after the last one: a year.
local INDEX_CHECKS, INDEX_KEPT_MS = 10, 31536000000

local function index_fan_out(index, record)
  local prefix = string.sub(index, 1, -2) .. ':' -- of records: that of the index without its plural
  for _, name in ipairs(redis.call('ZRANGE', index, 0, INDEX_CHECKS - 1)) do
    if redis.call('EXISTS', prefix .. name) == 1 then
      redis.call('ZADD', index, format_integer(now), name)
    else
      redis.call('ZREM', index, name)
    end
  end
  redis.call('ZADD', index, format_integer(now), string.sub(record, #prefix + 1))
  redis.call('PEXPIRE', index, INDEX_KEPT_MS)
end
