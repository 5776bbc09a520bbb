-- withdraw.lua: takes revoked tasks out of their lines, without quota, so that the worker that
-- asks can announce them as revoked.
-- uses: line_removal
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
local till = now + tonumber(ARGV[3])
local taken = {}
for key = 3, #KEYS, 4 do
  local queue = { unpack(KEYS, key, key + 3) }
  for i = 5, #ARGV do
    local line, at, about, packed = line_of(queue, ARGV[i])
    if line then
      if #taken == 0 then
        follow_clock(KEYS[1], now)
        write_lease(KEYS[1], ARGV[2], till, now) -- for who gives them back
      end
      taken[#taken + 1] = hand_out(KEYS[2], token, line, about, at, ARGV[i], packed, 0, 0, now)
      token = token + 1
      close_up(line, about, at, now)
    end
  end
end
return taken
