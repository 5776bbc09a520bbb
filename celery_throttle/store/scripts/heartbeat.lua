-- heartbeat.lua: a worker lives, and consumes some queues; how many others live, which limits are in force or
-- paused, and which queues nobody consumes.
-- uses: leases, pauses, consumed_queues
--
-- KEYS  1   zset: workers that live -> until when (us) they are taken to
--       2   hash: definitions of limits
--       3   hash: tasks that were set aside
--       4   zset: queues that the broker deletes with their last consumer, see `consumed_queues.lua`
--       5   zset: other queues, likewise
--       then for each queue: its lines, and its lines under its name of earlier versions
--       then per name of a limit: until when (us) it is paused
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   how long (us) it is taken to live; 0: it ends
--       4   how many definitions are told at most, if not only those of the names that follow
--       5   how long (us) a worker is taken to consume what it said
--       6   how long (us) to remember other queues after the last worker
--       7   for each queue '1' if the broker deletes it with its last consumer, else '0'
--       then names of limits
-- Reply {how many live, how many tasks are set aside, {{1 if a queue holds tasks under its earlier name, else
--        0; ...}, {lines of a queue that the broker has deleted, ...}, {lines of another queue that nobody
--        consumes, ...}; of the last two some at a time}, field, definition without its origin and times, ...,
--        'pause ' and a name, for how long (us) it is paused, ...}

local given = ARGV[1]
local now, lease = clock(given), tonumber(ARGV[3])
follow_clock(KEYS[1], now)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(0', whole(now))
local earlier = consume(KEYS[4], KEYS[5], 6, ARGV[7], now)
redis.call('PEXPIRE', KEYS[5], expiry(tonumber(ARGV[6]), given))
if lease == 0 then
  remove_lease(KEYS[1], ARGV[2])
  return { redis.call('ZCOUNT', KEYS[1], '(0', '+inf') }
end
write_lease(KEYS[1], ARGV[2], now + lease, now)
redis.call('PEXPIRE', KEYS[1], expiry(lease, given))

local since = now - tonumber(ARGV[5])
local reply = {
  redis.call('ZCOUNT', KEYS[1], '(0', '+inf'), redis.call('HLEN', KEYS[3]),
  { earlier, deleted(KEYS[4], KEYS[5], since), unconsumed(KEYS[5], since) },
}
local pauses, names = 6 + 2 * #ARGV[7], 8
local function tell(field, packed)
  if packed and not string.find(field, ' ', 1, true) then -- a weight
    reply[#reply + 1], reply[#reply + 2] = field, string.sub(packed, 26)
  end
end
if redis.call('HLEN', KEYS[2]) <= tonumber(ARGV[4]) then
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    tell(all[i], all[i + 1])
  end
elseif #ARGV >= names then
  local found = read_many('HMGET', KEYS[2], ARGV, names, #ARGV)
  for i = names, #ARGV do
    tell(ARGV[i], found[i - names + 1])
  end
end
for i, pause in ipairs(read_many('MGET', nil, KEYS, pauses, #KEYS)) do
  local paused = paused_for(KEYS[pauses + i - 1], pause, now, given)
  if paused > 0 then
    reply[#reply + 1], reply[#reply + 2] = 'pause ' .. ARGV[names + i - 1], whole(paused)
  end
end
return reply
