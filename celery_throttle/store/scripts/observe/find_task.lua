-- find_task.lua: finds a task in the lines, among the claims, and in quarantine.
-- KEYS  1   zset: workers with claims
--       2   hash: tasks in quarantine
--       3   head of the keys `claims`
--       then per queue: lines, messages, due, polls
--       last: head of the totals
-- ARGV  2   the task
--       3   name of the worker at whose claims to begin, '' at first
--       4   cursor among these claims, '0' at first
-- Reply {'line', waited (us), key `lines` of its queue, line, position, tasks of the line, index of the limit at which it
--        waits (0: it is surplus), expires (us), message, {field, cost (millionths), ...}}
--       {'claim', waited (us), key `lines` of its queue, worker, when (us from now) its lease ends}
--       {'quarantine', 0, key `lines` of its queue, label}
--       {'more', worker, cursor}    to go on with, as claims are large
--       {'unknown'}

local id = ARGV[2]

local function describe_line(queue, line, limit_index, descriptor, row)
  local requirements = {}
  for i, limit_keys in ipairs(descriptor.limits) do
    requirements[#requirements + 1], requirements[#requirements + 2] = limit_keys[FIELD], row[COSTS][i]
  end
  return { 'line', wait_of(row), queue[LINES], line, redis.call('ZRANK', line, id) + 1, redis.call('ZCARD', line),
           limit_index, format_integer(row[EXPIRES]), row[MESSAGE], requirements }
end

for key = 4, #KEYS - 1, 4 do
  local queue = { unpack(KEYS, key, key + 3) }
  local line, limit_index, descriptor, _, row = find_task(queue, id)
  if line then
    return describe_line(queue, line, limit_index, descriptor, row)
  end
end

local bytes = 0

-- Look at some claims of a worker. Returns the cursor of the next step, and the reply if the task is found.
local function search_claims(worker, cursor)
  local next_cursor, found = scan_hash(KEYS[3] .. worker, cursor, 100)
  for i = 2, #found, 2 do
    local _, descriptor, claimed_id, _, packed = unpack_claim(found[i])
    bytes = bytes + #found[i]
    if claimed_id == id then
      local row, lease_ends = unpack_row(packed), redis.call('ZSCORE', KEYS[1], worker)
      local waited = row and wait_of(row) or 0
      return next_cursor, { 'claim', waited, descriptor.queue[LINES], worker, lease_ends - now }
    end
  end
  return next_cursor
end

local workers = redis.call('ZRANGE', KEYS[1], '(0', '+inf', 'BYSCORE')
table.sort(workers)
for _, worker in ipairs(workers) do
  local cursor, reply = worker == ARGV[3] and ARGV[4] or '0', nil
  while worker >= ARGV[3] do
    if bytes >= BATCH_BYTES then
      return { 'more', worker, cursor }
    end
    cursor, reply = search_claims(worker, cursor)
    if reply then
      return reply
    elseif cursor == '0' then
      break
    end
  end
end
local _, descriptor, label = unpack_claim(redis.call('HGET', KEYS[2], id) or '')
if descriptor then
  return { 'quarantine', 0, descriptor.queue[LINES], label }
end
return { 'unknown' }
