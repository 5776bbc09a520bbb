-- fan_out_index.lua: the index of fan-outs: a zset of the keys of their records, by when (us) each was last found.
-- uses: clock
-- A record expires by itself and leaves its key here, so each new fan-out looks after some of the others.

-- How many others a new fan-out looks after, and how long (ms) the index is kept after the last one: a year.
local INDEX_CHECKS, INDEX_KEPT_MS = 10, 31536000000

local function index_fan_out(index, record)
  for _, other in ipairs(redis.call('ZRANGE', index, 0, INDEX_CHECKS - 1)) do
    if redis.call('EXISTS', other) == 1 then
      redis.call('ZADD', index, format_integer(now), other)
    else
      redis.call('ZREM', index, other)
    end
  end
  redis.call('ZADD', index, format_integer(now), record)
  redis.call('PEXPIRE', index, INDEX_KEPT_MS)
end
