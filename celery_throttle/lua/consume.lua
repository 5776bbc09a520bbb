-- consume.lua: a worker consumes some queues: which of them hold tasks under their names of earlier versions,
-- and which other queues hold tasks though nobody has said for long that he consumes them.
-- uses: clock
--
-- KEYS  1    zset: key `lines` of a queue that the broker deletes with its last consumer and that holds tasks
--            -> when (us) a worker last said that it consumes it
--       2    zset: likewise of other queues
--       then for each queue: its lines, and its lines under its earlier name
-- ARGV  1    now (us), or '' for the server's clock
--       2    how long (us) a worker is taken to consume what it said
--       3    how long (us) to remember other queues after the last worker
--       then for each queue: '1' if the broker deletes it with its last consumer
-- Reply {{1 if the queue holds tasks under its earlier name, else 0; ...}, {lines of a queue that the broker
--        has deleted, ...}, {lines of another queue that nobody consumes, ...}}; of the last two some at a time

local given, temporary, others = ARGV[1], KEYS[1], KEYS[2]
local now = clock(given)
local since = now - tonumber(ARGV[2])

local function consume(queues, lines)
  local holds_tasks = redis.call('EXISTS', lines)
  if holds_tasks == 1 then
    redis.call('ZADD', queues, whole(now), lines)
  else
    redis.call('ZREM', queues, lines)
  end
  return holds_tasks
end

local function unconsumed(queues)
  return redis.call('ZRANGE', queues, '-inf', whole(since), 'BYSCORE', 'LIMIT', 0, 10)
end

local earlier, deleted = {}, {}
for i = 1, (#KEYS - 2) / 2 do
  consume(ARGV[3 + i] == '1' and temporary or others, KEYS[1 + 2 * i])
  earlier[i] = consume(others, KEYS[2 + 2 * i])
end
for _, lines in ipairs(unconsumed(temporary)) do
  -- Another worker may have declared it in another way.
  if tonumber(redis.call('ZSCORE', others, lines) or 0) <= since then
    deleted[#deleted + 1] = lines
  end
end
redis.call('PEXPIRE', others, expiry(tonumber(ARGV[3]), given))
return { earlier, deleted, unconsumed(others) }
