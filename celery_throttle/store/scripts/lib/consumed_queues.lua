-- consumed_queues.lua: which of the queues that hold tasks are consumed by workers.
-- uses: clock
--
--   temporary   zset   queues that the broker deletes with their last consumer
--   consumed    zset   all other queues
--
-- Both map the key `lines` of a queue that holds tasks to when (us) a worker last reported that it consumes the
-- queue.

-- Note in one of the sets that a queue is consumed now. Returns 1 if the queue holds tasks, else 0: then it is
-- removed from the set.
local function note_consumed(set, lines)
  local holds_tasks = redis.call('EXISTS', lines)
  if holds_tasks == 1 then
    redis.call('ZADD', set, format_integer(now), lines)
  else
    redis.call('ZREM', set, lines)
  end
  return holds_tasks
end

-- Up to ten queues of a set that no worker has reported since a time (us).
local function list_unconsumed(set, since)
  return redis.call('ZRANGE', set, '-inf', format_integer(since), 'BYSCORE', 'LIMIT', 0, 10)
end

-- The unconsumed temporary queues that the broker has deleted. A worker may have declared one of them in another way:
-- then it is in both sets.
local function list_deleted(temporary, consumed, since)
  local found = {}
  for _, lines in ipairs(list_unconsumed(temporary, since)) do
    if tonumber(redis.call('ZSCORE', consumed, lines) or 0) <= since then
      found[#found + 1] = lines
    end
  end
  return found
end
