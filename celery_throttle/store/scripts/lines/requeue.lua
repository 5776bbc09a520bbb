-- requeue.lua: puts claims back at the heads of their lines.
-- KEYS  1   hash: definitions of limits
--       2   zset: workers -> end of their lease (us)
--       3   hash: claims of the worker, see `line_data.lua`
--       4   head of the totals, see `counters.lua`
-- ARGV  2   the worker
--       3   'own' for the given tokens, or 'dead' for all, if the worker's lease has run out
--       4   how many claims at most; their bytes are bounded, too
--       then per token: the token, and how far its task has come: 'held' if Celery does not have its message,
--       'delivered' if Celery has it, 'started' if the task may have run
-- Reply how many claims are left to requeue: of given tokens the last ones. Damaged claims are not among them, and stay
-- where they are. If a dead worker has nothing else, the reply is below 0: minus their number. Without a lease they are
-- kept as long as totals are.
-- A task that waits again already (a retry of a run whose worker died) keeps its newer message. How far the tasks of a
-- dead worker have come is not known: they may have run. The units of a task that was not started are given back, see
-- `settlement.lua`.

local definitions, workers, claims, worker = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local tokens, statuses = {}, {}
if ARGV[3] == 'dead' then
  local lease_ends = redis.call('ZSCORE', workers, worker)
  if lease_ends and tonumber(lease_ends) > now then
    return 0
  end
  tokens = redis.call('HKEYS', claims)
else
  for i = 5, #ARGV, 2 do
    tokens[#tokens + 1], statuses[#statuses + 1] = ARGV[i], ARGV[i + 1]
  end
end

-- Mark the message of a row as redelivered, in its head: bytes 2 to 5 are the length of the head, byte 6 its first,
-- '{'. Other messages stay as they are. See `celery_throttle/tasks/messages/packing.py`.
local function mark_redelivered(packed)
  local row, mark = unpack_row(packed), '"redelivered": true, '
  local message = row and row[MESSAGE] or ''
  local is_marked = string.sub(message, 7, 6 + #mark) == mark
  if is_marked or string.sub(message, 1, 1) ~= '1' or string.sub(message, 6, 6) ~= '{' then
    return packed
  end
  local length = struct.pack('<I4', struct.unpack('<I4', message, 2) + #mark)
  row[MESSAGE] = '1' .. length .. '{' .. mark .. string.sub(message, 7)
  return cmsgpack.pack(row)
end

work_without_memory()
local most, requeued, done, bytes = tonumber(ARGV[4]), 0, 0, 0
while done < #tokens and requeued < most and bytes < BATCH_BYTES do
  done = done + 1
  local token, status = tokens[done], statuses[done] or 'started'
  local claim = redis.call('HGET', claims, token)
  local line, descriptor, id, score, row, marks = unpack_claim(claim or '')
  if line then
    requeued, bytes = requeued + 1, bytes + #claim
    rejoin_line(line, descriptor, id, score, status == 'held' and row or mark_redelivered(row))
    release_slots(descriptor, worker, token, id)
    if ARGV[3] == 'dead' then
      increase_totals(descriptor, 'lost_claims', 1)
    end
    redis.call('HDEL', claims, token)
    if marks and status ~= 'started' then
      refund_claim(definitions, descriptor, row, marks)
    end
  end
end
end_lease(workers, worker, claims)
if ARGV[3] == 'dead' and done == #tokens and redis.call('PEXPIRE', claims, TOTALS_KEPT_MS) == 1 then
  remove_lease(workers, worker)
  return -redis.call('HLEN', claims)
end
return #tokens - done
