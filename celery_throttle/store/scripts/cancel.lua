-- cancel.lua: tasks of a fan-out that wait are taken out of their lines for good, some at a time.
-- uses: line_removal
--
-- KEYS  1   record of the fan-out, see `fan_out.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   number: of the tasks that are looked at
--       3   cursor: '0' at first, then what the last call replied
-- Reply {cursor to go on with, '0' at the end; how many were cancelled}

local now, record = clock(ARGV[1]), KEYS[1]
if redis.call('EXISTS', record) == 0 then
  return { '0', 0 }
end
redis.call('HDEL', record, '') -- see `record_outcomes.lua`
redis.call('HSET', record, 'cancelled', '1')
local found = redis.call('HSCAN', record .. ':' .. ARGV[2], ARGV[3], 'COUNT', 200)
local queues, cancelled = {}, 0
for i = 1, #found[2], 2 do
  local id, at = found[2][i], found[2][i + 1]
  if tonumber(at) then
    if queues[at] == nil then
      local packed = redis.call('HGET', record .. ':queues', at)
      queues[at] = packed and cmsgpack.unpack(packed)
    end
    local line, place, about
    if queues[at] then
      line, place, about = line_of(queues[at], id)
    end
    if line and about.fan_out == record then
      fan_out_ended(record, id, 'revoked')
      leave(line, about, place, { id }, now)
      close_up(line, about, place, now)
      cancelled = cancelled + 1
    end
  end
end
return { found[1], cancelled }
