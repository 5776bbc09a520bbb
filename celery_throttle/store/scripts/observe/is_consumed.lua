-- is_consumed.lua: tests whether a live worker consumes a queue, with tasks or without.
-- uses: clock
-- KEYS  1   zset: live workers, see `heartbeat.lua`
--       2   zset: queues of live workers, see `heartbeat.lua`
--       3   key `lines` of the queue
-- ARGV  1   now (us), or '' for the server's clock
--       2   for how long (us) a queue counts as consumed after a worker has reported that
-- Reply 1 or 0

local reported = tonumber(redis.call('ZSCORE', KEYS[2], KEYS[3]) or 0)
local has_workers = redis.call('ZCOUNT', KEYS[1], '(' .. format_integer(now), '+inf') > 0
return has_workers and reported > now - ARGV[2] and 1 or 0
