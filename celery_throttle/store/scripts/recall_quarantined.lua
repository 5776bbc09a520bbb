-- recall_quarantined.lua: tasks that were set aside go back to the places they had in their lines.
-- uses: line_removal
--
-- KEYS  1   hash: tasks that were set aside
-- ARGV  1   now (us), or '' for the server's clock
--       then task ids
-- A task that already waits again keeps its newer message.

local now = clock(ARGV[1])
for i = 2, #ARGV do
  local id = ARGV[i]
  local found = redis.call('HGET', KEYS[1], id)
  if found then
    local _, line, about, score, packed = unpack(cmsgpack.unpack(found))
    rejoin(line, about, id, score, packed, now, ARGV[1])
    redis.call('HDEL', KEYS[1], id)
  end
end
