-- page.lua: reads ids of the tasks of a fan-out that have ended, in that order.
--
-- KEYS  1   list: these ids, see `fan_out.lua`
-- ARGV  1   place of the first, from 0
--       2   place of the last
-- Reply {task id, ...}

return redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[2])
