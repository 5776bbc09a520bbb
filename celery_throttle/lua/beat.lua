-- beat.lua: a worker lives; how many others do, and which limits are in force or paused.
-- uses: leases, pauses
--
-- KEYS  1   zset: workers that live -> until when (us) they are taken to
--       2   hash: definitions of limits
--       3   hash: tasks that were set aside
--       then per name of a limit: until when (us) it is paused
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   how long (us) it is taken to live; 0: it ends
--       4   how many definitions are told at most, if not only those of the names that follow
--       then names of limits
-- Reply {how many live, how many tasks are set aside, field, definition without its origin and times, ...,
--        'pause ' and a name, for how long (us) it is paused, ...}

local given = ARGV[1]
local now, lease = clock(given), tonumber(ARGV[3])
follow_clock(KEYS[1], now)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(0', whole(now))
if lease == 0 then
  remove_lease(KEYS[1], ARGV[2])
  return { redis.call('ZCOUNT', KEYS[1], '(0', '+inf') }
end
write_lease(KEYS[1], ARGV[2], now + lease, now)
redis.call('PEXPIRE', KEYS[1], expiry(lease, given))

local reply = { redis.call('ZCOUNT', KEYS[1], '(0', '+inf'), redis.call('HLEN', KEYS[3]) }
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
elseif #ARGV > 4 then
  local found = read_many('HMGET', KEYS[2], ARGV, 5, #ARGV)
  for i = 5, #ARGV do
    tell(ARGV[i], found[i - 4])
  end
end
for i, pause in ipairs(read_many('MGET', nil, KEYS, 4, #KEYS)) do
  local paused = paused_for(KEYS[i + 3], pause, now, given)
  if paused > 0 then
    reply[#reply + 1], reply[#reply + 2] = 'pause ' .. ARGV[i + 4], whole(paused)
  end
end
return reply
