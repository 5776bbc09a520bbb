-- quarantine.lua: a worker that has no code for a task it took sets it aside, for one that has.
-- uses: lines
--
-- KEYS  1   zset: workers -> end of their lease (us)
--       2   hash: the worker's claims
--       3   hash: tasks that were set aside, task id -> packed {label, line, about, score, packed}
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   the token of the claim
--       4   what it takes to run it; see `celery_throttle/worker/claims/quarantine.py`

local now, claim = clock(ARGV[1]), redis.call('HGET', KEYS[2], ARGV[3])
if claim then
  local line, about, id, score, packed = unpack(cmsgpack.unpack(claim))
  redis.call('HSET', KEYS[3], id, cmsgpack.pack({ ARGV[4], line, about, score, packed }))
  give_slots_back(about, ARGV[2], ARGV[3], now)
  redis.call('HDEL', KEYS[2], ARGV[3])
  end_lease(KEYS[1], ARGV[2], KEYS[2])
end
