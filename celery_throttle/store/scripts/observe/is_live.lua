-- is_live.lua: tests whether a worker is one of those that live.
-- KEYS  1   zset: live workers, see `heartbeat.lua`
-- ARGV  1   the worker
-- Reply 1 or 0

return redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0
