-- quarantine.lua: puts a task for which a worker has no code into quarantine, for a worker that has the code.
-- KEYS  1   zset: workers -> end of their lease (us)
--       2   hash: claims of this worker, see `line_data.lua`
--       3   hash: tasks in quarantine, task id -> packed {label, line, descriptor, score, packed row}
-- ARGV  2   the worker
--       3   the token of the claim
--       4   label: what a worker needs to run the task; see `celery_throttle/worker/claims/quarantine.py`

work_without_memory()
local worker, token = ARGV[2], ARGV[3]
local claim = redis.call('HGET', KEYS[2], token)
if claim then
  local line, descriptor, id, score, row = unpack(cmsgpack.unpack(claim))
  redis.call('HSET', KEYS[3], id, cmsgpack.pack({ ARGV[4], line, descriptor, score, row }))
  release_slots(descriptor, worker, token)
  redis.call('HDEL', KEYS[2], token)
  end_lease(KEYS[1], worker, KEYS[2])
end
