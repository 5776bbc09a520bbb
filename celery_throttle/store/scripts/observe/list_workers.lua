-- list_workers.lua: lists the live workers, and the lost ones: those that have stopped answering within the last quarter
-- of an hour, or whose claims have not been returned yet.
-- KEYS  1   zset: live and lost workers -> until when (us) they count as live, see `heartbeat.lua`
--       2   zset: workers -> end of the lease (us) of their claims
--       3   head of the keys `claims`
-- ARGV  2   how many of each kind at most
-- Reply {now (us), {worker; for how long (us) it has been lost, 0 if it is live, -1 if that is unknown; how many claims it has;
--        when (us from now) their lease ends}, ...}

local reply, is_listed = { now }, {}

local function add_all(workers)
  for _, worker in ipairs(workers) do
    if worker ~= '' and not is_listed[worker] then
      is_listed[worker] = true
      local live_until = redis.call('ZSCORE', KEYS[1], worker)
      local lost = live_until and math.max(0, now - live_until) or -1
      local claims, ends = redis.call('HLEN', KEYS[3] .. worker), redis.call('ZSCORE', KEYS[2], worker)
      reply[#reply + 1] = { worker, lost, claims, math.floor((ends or now) - now) }
    end
  end
end

local time = format_integer(now)
add_all(redis.call('ZRANGE', KEYS[1], '(' .. time, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2]))
add_all(redis.call('ZRANGE', KEYS[1], '(0', time, 'BYSCORE', 'LIMIT', 0, ARGV[2]))
add_all(redis.call('ZRANGE', KEYS[2], '(0', '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2]))
return reply
