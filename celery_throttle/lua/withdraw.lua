-- withdraw.lua: takes revoked tasks out of their lines, without quota, so that the worker that
-- asks can announce them as revoked.
-- uses: lines
--
-- KEYS  1   hash: this worker's claims
--       then per queue: lines, messages, due, asks
-- ARGV  1   now (us), or '' for the server's clock
--       2   the token of the first task taken; those after it count up
--       then task ids
-- Reply {{token, 0, 0, waited (us), message, task id}, ...}

local now, token = clock(ARGV[1]), tonumber(ARGV[2])
local taken = {}
for key = 2, #KEYS, 4 do
  local messages = KEYS[key + 1]
  for i = 3, #ARGV do
    local packed = redis.call('HGET', messages, ARGV[i])
    if packed then
      local entry = cmsgpack.unpack(packed)
      local line = entry[1]
      local at, about = unpack_line(redis.call('HGET', KEYS[key], line))
      taken[#taken + 1] = hand_out(KEYS[1], token, line, about, at, ARGV[i], entry, 0, 0, now)
      token = token + 1
      if redis.call('EXISTS', line) == 0 then
        redis.call('LREM', about.limits[at][7], 1, line)
        tidy(about.limits[at], about.queue)
      end
    end
  end
end
return taken
