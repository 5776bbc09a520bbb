-- cancel.lua: removes waiting tasks of a fan-out from their lines for good, some at a time.
-- KEYS  1   record of the fan-out, see `fan_outs.lua`
--       2   head of the totals, see `counters.lua`
-- ARGV  2   number of the tasks that are looked at, see `fan_outs.lua`
--       3   cursor: '0' at first, then the one that the last call replied
-- Reply {cursor of the next call, '0' at the end; how many tasks were cancelled; 1 if the cursor is that of this call, as
--        the tasks were large, else 0}

local record = KEYS[1]
if redis.call('EXISTS', record) == 0 then
  return { '0', 0, 0 }
end
work_without_memory()
redis.call('HSET', record, 'cancelled', '1')

local queues, cancelled, bytes = {}, 0, 0

local function queue_of(number)
  if queues[number] == nil then
    local packed = redis.call('HGET', record .. ':queues', number)
    queues[number] = packed and cmsgpack.unpack(packed)
  end
  return queues[number]
end

local found = redis.call('HSCAN', record .. ':' .. ARGV[2], ARGV[3], 'COUNT', 200)
for i = 1, #found[2], 2 do
  if bytes >= BATCH_BYTES then
    return { ARGV[3], cancelled, 1 }
  end
  local id, value = found[2][i], found[2][i + 1]
  local number = string.match(value, '%d+') -- the value of an ended task is how it ended
  local queue = number and queue_of(number)
  if queue then
    local line, limit_index, descriptor, packed = find_task(queue, id)
    if line and descriptor.fan_out == record then
      record_fan_out_outcome(record, id, 'revoked')
      remove_from_line(line, descriptor, limit_index, { id })
      increase_totals(descriptor, 'revoked', 1)
      cancelled, bytes = cancelled + 1, bytes + #packed
    end
  end
end
return { found[1], cancelled, 0 }
