-- withdraw.lua: takes revoked tasks out of their lines, without quota, so that the worker that
-- asks can announce them as revoked.
-- uses: lines
--
-- KEYS  1   zset: workers -> end of their lease (us)
--       2   hash: this worker's claims
--       then per queue: lines, messages, due, asks
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   lease (us)
--       4   the token of the first task taken; those after it count up
--       then task ids
-- Reply {{token, 0, 0, waited (us), message, task id}, ...}

local now, token = clock(ARGV[1]), tonumber(ARGV[4])
local taken = {}
for key = 3, #KEYS, 4 do
  local messages = KEYS[key + 1]
  for i = 5, #ARGV do
    local packed = redis.call('HGET', messages, ARGV[i])
    local line = packed and cmsgpack.unpack(packed)[1]
    local found = line and redis.call('ZSCORE', line, ARGV[i]) and redis.call('HGET', KEYS[key], line)
    if found then
      local at, about = unpack_line(found)
      taken[#taken + 1] = hand_out(KEYS[2], token, line, about, at, ARGV[i], packed, 0, 0, now)
      token = token + 1
      local limit = about.limits[at]
      if redis.call('EXISTS', line) == 0 then
        redis.call('ZREM', limit[WAITING], line)
        tidy(limit, about.queue)
      else
        follow(limit[WAITING], line, about)
      end
      hurry(limit, about.queue, now, 0)
    end
  end
end
if #taken > 0 then
  lease(KEYS[1], ARGV[2], KEYS[2], now + tonumber(ARGV[3]))
end
return taken
