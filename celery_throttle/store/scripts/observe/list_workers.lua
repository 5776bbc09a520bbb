-- list_workers.lua: lists the live workers, and the lost ones whose claims have not been returned yet.
-- KEYS  1   zset: live workers -> until when (us) they count as live, see `heartbeat.lua`
--       2   zset: workers -> end of the lease (us) of their claims
--       3   head of the keys `claims`
-- ARGV  2   how many of each kind at most
-- Reply {{worker, '1' if it is live, else '0'; how many claims it has; when (us from now) their lease ends}, ...}

local reply, is_listed = {}, {}

local function add(worker, is_live)
  if worker ~= '' and not is_listed[worker] then
    is_listed[worker] = true
    local claims, ends = redis.call('HLEN', KEYS[3] .. worker), redis.call('ZSCORE', KEYS[2], worker)
    reply[#reply + 1] = { worker, is_live, claims, math.floor((ends or now) - now) }
  end
end

local live_since = '(' .. format_integer(now)
for _, worker in ipairs(redis.call('ZRANGE', KEYS[1], live_since, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  add(worker, '1')
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS[2], '(0', '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  add(worker, '0')
end
return reply
