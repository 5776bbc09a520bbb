-- consumed_queues.lua: which queues workers consume, of those that hold tasks.
-- uses: clock
--
-- Library. Of two sets, one of queues that the broker deletes with their last consumer, and one of others:
--
--   temporary, consumed   zset   key `lines` of a queue that holds tasks -> when (us) a worker last said that
--                                it consumes the queue

-- A worker says that it consumes some queues. KEYS, from one on, are for each queue: its lines, and its lines
-- under its name of earlier versions; flags: for each queue '1' if the broker deletes it with its last
-- consumer. Returns for each queue 1 if it holds tasks under its earlier name, else 0.
local function consume(temporary, consumed, first, flags, now)
  local earlier = {}
  local function say(queues, lines)
    local holds_tasks = redis.call('EXISTS', lines)
    if holds_tasks == 1 then
      redis.call('ZADD', queues, whole(now), lines)
    else
      redis.call('ZREM', queues, lines)
    end
    return holds_tasks
  end
  for i = 1, #flags do
    local key = first + 2 * (i - 1)
    say(string.sub(flags, i, i) == '1' and temporary or consumed, KEYS[key])
    earlier[i] = say(consumed, KEYS[key + 1])
  end
  return earlier
end

-- Some of the queues that no worker has said since then to consume.
local function unconsumed(queues, since)
  return redis.call('ZRANGE', queues, '-inf', whole(since), 'BYSCORE', 'LIMIT', 0, 10)
end

-- Those of them that the broker has deleted: another worker may have declared one in another way.
local function deleted(temporary, consumed, since)
  local found = {}
  for _, lines in ipairs(unconsumed(temporary, since)) do
    if tonumber(redis.call('ZSCORE', consumed, lines) or 0) <= since then
      found[#found + 1] = lines
    end
  end
  return found
end
