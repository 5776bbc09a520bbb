-- discard_quarantined.lua: discards the tasks of a queue that are in quarantine, some at a time.
-- uses: line_data, fan_out_outcome, fan_out_waiting, scan_hash
-- KEYS  1   hash: tasks in quarantine, see `quarantine.lua`
--       2   the queue's lines
-- ARGV  1   now (us), or '' for the server's clock
--       2   cursor: '0' at first, then the one that the last call replied
-- Reply {cursor of the next call, '0' at the end; how many tasks were discarded}

-- A server that is out of memory runs a script whose first write frees memory.
redis.call('HDEL', KEYS[1], '')
local cursor, found = scan_hash(KEYS[1], ARGV[2], 100)
local discarded = 0
for i = 1, #found, 2 do
  local id, descriptor = found[i], cmsgpack.unpack(found[i + 1])[3]
  if descriptor.queue[LINES] == KEYS[2] then
    if descriptor.fan_out then
      record_fan_out_outcome(descriptor.fan_out, id, 'revoked')
      change_fan_out_waiting(descriptor.fan_out, 0)
    end
    discarded = discarded + redis.call('HDEL', KEYS[1], id)
  end
end
return { cursor, discarded }
