-- touch.lua: the limit has changed, so tasks that wait at it are looked at again now.
-- uses: lines
--
-- KEYS  1   hash: waiting lists of the limit's name
-- ARGV  1   now (us), or '' for the server's clock
--       2   cursor: '0' at first, then what the last call replied
-- Reply the cursor to go on with; '0' at the end. Called in steps so that no call blocks the server.

local now = clock(ARGV[1])
local found = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 500)
local woken = {}
for i = 1, #found[2], 2 do
  local names = cmsgpack.unpack(found[2][i + 1])
  redis.call('ZADD', names[1], 'XX', string.format('%.0f', now), found[2][i])
  if not woken[names[2]] then
    woken[names[2]] = true
    wake({ [ASKS] = names[2] }, now, now)
  end
end
return found[1]
