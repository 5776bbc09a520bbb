-- discard_quarantined.lua: of the tasks that were set aside, those of a queue are discarded, some at a time.
-- uses: fan_out
--
-- KEYS  1   hash: tasks that were set aside, see `quarantine.lua`
--       2   the queue's lines
-- ARGV  1   now (us), or '' for the server's clock
--       2   cursor: '0' at first, then what the last call replied
-- Reply {cursor to go on with, '0' at the end; how many were discarded}

-- A server that is out of memory carries out a script whose first write takes something away.
redis.call('HDEL', KEYS[1], '')
local found, discarded = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 100), 0
for i = 1, #found[2], 2 do
  local id, about = found[2][i], cmsgpack.unpack(found[2][i + 1])[3]
  if about.queue[1] == KEYS[2] then
    if about.fan_out then
      fan_out_ended(about.fan_out, id, 'revoked')
      fan_out_waits(about.fan_out, 0, ARGV[1])
    end
    discarded = discarded + redis.call('HDEL', KEYS[1], id)
  end
end
return { found[1], discarded }
