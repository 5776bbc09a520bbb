-- find_task.lua: finds a task in the lines, among the claims, and in quarantine.
-- uses: clock, line_removal
-- KEYS  1   zset: workers with claims
--       2   hash: tasks in quarantine
--       3   head of the keys `claims`
--       then per queue: lines, messages, due, asks
--       last: head of the totals
-- ARGV  1   now (us), or '' for the server's clock
--       2   the task
-- Reply {'line', waited (us), key `lines` of its queue, line, position, tasks of the line, index of the limit at which it
--        waits, expires (us), message, {field, cost (millionths), ...}}
--       {'claim', waited (us), key `lines` of its queue, worker, when (us from now) its lease ends}
--       {'quarantine', 0, key `lines` of its queue, label}
--       {'unknown'}

local id = ARGV[2]

local function describe_line(queue, line, limit_index, descriptor, packed)
  local row, requirements = cmsgpack.unpack(packed), {}
  for i, limit_keys in ipairs(descriptor.limits) do
    requirements[#requirements + 1], requirements[#requirements + 2] = limit_keys[FIELD], row[COSTS][i]
  end
  return { 'line', now - row[PARKED], queue[LINES], line, redis.call('ZRANK', line, id) + 1, redis.call('ZCARD', line),
           limit_index, format_integer(row[EXPIRES]), row[MESSAGE], requirements }
end

for key = 4, #KEYS - 1, 4 do
  local queue = { unpack(KEYS, key, key + 3) }
  local line, limit_index, descriptor, packed = find_task(queue, id)
  if line then
    return describe_line(queue, line, limit_index, descriptor, packed)
  end
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS[1], '(0', '+inf', 'BYSCORE')) do
  for _, claim in ipairs(redis.call('HVALS', KEYS[3] .. worker)) do
    local _, descriptor, claimed_id, _, packed = unpack(cmsgpack.unpack(claim))
    if claimed_id == id then
      local lease_ends = redis.call('ZSCORE', KEYS[1], worker)
      return { 'claim', now - cmsgpack.unpack(packed)[PARKED], descriptor.queue[LINES], worker, lease_ends - now }
    end
  end
end
local found = redis.call('HGET', KEYS[2], id)
if found then
  local label, _, descriptor = unpack(cmsgpack.unpack(found))
  return { 'quarantine', 0, descriptor.queue[LINES], label }
end
return { 'unknown' }
