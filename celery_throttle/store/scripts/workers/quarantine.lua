-- quarantine.lua: puts a task for which a worker has no code into quarantine, for a worker that has the code.
-- KEYS  1   hash: definitions of limits
--       2   zset: workers -> end of their lease (us)
--       3   hash: claims of this worker, see `line_data.lua`
--       4   hash: tasks in quarantine, task id -> the claim without marks, and with the label instead of the id
--       5   head of the totals, see `counters.lua`
-- ARGV  2   the worker
--       3   the token of the claim
--       4   label: what a worker needs to run the task; see `celery_throttle/worker/claims/quarantine.py`
-- The task was not started: its units are given back, see `settlement.lua`.

work_without_memory()
local definitions, workers, claims, quarantine, worker, token = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2], ARGV[3]
local line, descriptor, id, score, row, marks = unpack_claim(redis.call('HGET', claims, token) or '')
if line then
  redis.call('HSET', quarantine, id, cmsgpack.pack({ line, descriptor, ARGV[4], score, row }))
  release_slots(descriptor, worker, token, id)
  redis.call('HDEL', claims, token)
  end_lease(workers, worker, claims)
  if marks then
    refund_claim(definitions, descriptor, row, marks)
  end
end
