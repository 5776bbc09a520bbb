-- heartbeat.lua: records that a worker lives and which queues it consumes. Replies how many workers live, the newest
-- change of a limit, the limits in force, their pauses, and the queues that the broker has deleted.
-- KEYS  1   zset: live workers -> until when (us) they count as live; lost ones stay for a quarter of an hour
--       2   hash: definitions of limits
--       3   hash: tasks in quarantine, see `quarantine.lua`
--       4   zset `temporary`: queues that the broker deletes with their last consumer
--       5   zset `consumed`: all other queues. Both map the key `lines` of a queue that holds tasks to when (us) a
--           worker last reported that it consumes the queue
--       6   stream: changes, see `definitions.lua`
--       7   zset: the key `lines` of each queue of a live worker, with tasks or without -> when (us) a worker last
--           reported that it consumes the queue
--       8   zset: names of limits of which tasks of a worker need keys -> when (us) a worker last reported that
--       then per queue: its lines
--       then per name of a limit: its pause
-- ARGV  2   the worker
--       3   for how long (us) it counts as live; 0 or less if it ends: its queues, unless they are temporary, then count
--           as reported by so much (us) earlier
--       4   reply all definitions if there are at most so many, else those of the names that follow
--       5   for how long (us) a worker counts as a consumer after it has reported a queue
--       6   for how long (us) the zset `consumed`, and a report of limits with keys, are kept after the last report
--       7   for each queue '1' if the broker deletes it with its last consumer, else '0'
--       8   names of limits of which tasks of this worker need keys, with a space between them
--       then names of limits
-- Reply {live workers, tasks in quarantine, id of the newest change or '',
--        {lines of a queue that no worker consumes and the broker has deleted, ...}, up to ten,
--        field, its limits as text, ...,
--        'pause ' and a name, for how long (us) it is paused, ...}
--       {live workers}    if the worker ends

-- For how long (us) a lost worker is shown as such.
local LOST_KEPT = 15 * 60 * 1000000

-- Note in one of the sets when a queue was consumed. A queue without tasks is removed from the set.
local function note_consumed(set, lines, at)
  if redis.call('EXISTS', lines) == 1 then
    redis.call('ZADD', set, format_integer(at), lines)
  else
    redis.call('ZREM', set, lines)
  end
end

-- Note in a set what this worker reports, {when (us), member, ...}; and forget what no worker has reported for `kept`
-- (us).
local function note_all(set, reported, kept)
  call_with('ZADD', set, reported)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', format_integer(now - kept))
  redis.call('PEXPIRE', set, expiry_ms(kept))
end

-- Up to ten temporary queues that no worker has reported since a time (us). A worker may have declared one of them in
-- another way: then it is in both sets.
local function list_deleted(temporary, consumed, since)
  local found = {}
  for _, lines in ipairs(redis.call('ZRANGE', temporary, '-inf', format_integer(since), 'BYSCORE', 'LIMIT', 0, 10)) do
    if tonumber(redis.call('ZSCORE', consumed, lines) or 0) <= since then
      found[#found + 1] = lines
    end
  end
  return found
end

local live, definitions, temporary, consumed = KEYS[1], KEYS[2], KEYS[4], KEYS[5]
local worker, lease = ARGV[2], tonumber(ARGV[3])
local queue_count, first_name = #ARGV[7], 9
local first_pause = 9 + queue_count

work_without_memory()
follow_clock(live)
redis.call('ZREMRANGEBYSCORE', live, '(0', format_integer(now - LOST_KEPT))
local reported_at, consumed_for, queues = now + math.min(0, lease), tonumber(ARGV[5]), {}
for i = 1, queue_count do
  local lines = KEYS[8 + i]
  if string.sub(ARGV[7], i, i) == '1' then
    note_consumed(temporary, lines, now)
  else
    note_consumed(consumed, lines, reported_at)
  end
  queues[2 * i - 1], queues[2 * i] = format_integer(reported_at), lines
end
redis.call('PEXPIRE', consumed, expiry_ms(tonumber(ARGV[6])))
note_all(KEYS[7], queues, consumed_for)
if lease <= 0 then
  remove_lease(live, worker)
  return { redis.call('ZCOUNT', live, '(' .. format_integer(now), '+inf') }
end
write_lease(live, worker, now + lease)
redis.call('PEXPIRE', live, expiry_ms(lease + LOST_KEPT))

local since, names_with_keys = now - consumed_for, {}
for name in string.gmatch(ARGV[8], '%S+') do
  names_with_keys[#names_with_keys + 1], names_with_keys[#names_with_keys + 2] = format_integer(now), name
end
note_all(KEYS[8], names_with_keys, tonumber(ARGV[6]))
local newest = redis.call('XREVRANGE', KEYS[6], '+', '-', 'COUNT', 1)[1]
local reply = {
  redis.call('ZCOUNT', live, '(' .. format_integer(now), '+inf'), redis.call('HLEN', KEYS[3]), newest and newest[1] or '',
  list_deleted(temporary, consumed, since),
}

local function add_definition(field, record)
  local is_weight = string.find(field, ' ', 1, true)
  record = not is_weight and record_in_force(record, false)
  if record then
    reply[#reply + 1], reply[#reply + 2] = field, text_in(record)
  end
end

if redis.call('HLEN', definitions) <= tonumber(ARGV[4]) then
  local all = redis.call('HGETALL', definitions)
  for i = 1, #all, 2 do
    add_definition(all[i], all[i + 1])
  end
elseif #ARGV >= first_name then
  local found = read_many('HMGET', definitions, ARGV, first_name, #ARGV)
  for i = first_name, #ARGV do
    add_definition(ARGV[i], found[i - first_name + 1])
  end
end
for i, pause in ipairs(read_many('MGET', nil, KEYS, first_pause, #KEYS)) do
  local rest = pause_left(KEYS[first_pause + i - 1], pause)
  if rest > 0 then
    reply[#reply + 1], reply[#reply + 2] = 'pause ' .. ARGV[first_name + i - 1], format_integer(rest)
  end
end
return reply
