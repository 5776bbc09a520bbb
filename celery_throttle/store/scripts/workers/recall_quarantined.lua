-- recall_quarantined.lua: returns tasks in quarantine to their positions in their lines.
-- uses: rejoin_line
-- KEYS  1   hash: tasks in quarantine, see `quarantine.lua`
--       2   head of the totals, see `counters.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       then task ids
-- A task that waits again already keeps its newer message.

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', KEYS[1], '')
for i = 2, #ARGV do
  local id = ARGV[i]
  local found = redis.call('HGET', KEYS[1], id)
  if found then
    local _, line, descriptor, score, row = unpack(cmsgpack.unpack(found))
    rejoin_line(line, descriptor, id, score, row)
    redis.call('HDEL', KEYS[1], id)
  end
end
