-- recall_quarantined.lua: returns tasks in quarantine to their positions in their lines.
-- KEYS  1   hash: tasks in quarantine, see `quarantine.lua`
--       2   head of the totals, see `counters.lua`
-- ARGV  from 2 on: task ids
-- A task that waits again already keeps its newer message.

work_without_memory()
for i = 2, #ARGV do
  local id = ARGV[i]
  local line, descriptor, _, score, row = unpack_claim(redis.call('HGET', KEYS[1], id) or '')
  if line then
    rejoin_line(line, descriptor, id, score, row)
    redis.call('HDEL', KEYS[1], id)
  end
end
