-- list_results.lua: reads ids of the tasks of a fan-out that have ended, in that order.
-- uses: fan_out
--
-- KEYS  1   record of the fan-out, see `fan_out.lua`
-- ARGV  1   place of the first, from 0
--       2   place of the last
--       3   '1' to note that those before the first were looked through
-- Reply {task id, how it ended, ...}

local record, rows = KEYS[1], {}
if ARGV[3] == '1' and redis.call('EXISTS', record) == 1 then
  redis.call('HDEL', record, '') -- see `record_outcomes.lua`
  redis.call('HSET', record, 'told', ARGV[1])
end
for _, id in ipairs(redis.call('LRANGE', record .. ':ended', ARGV[1], ARGV[2])) do
  rows[#rows + 1], rows[#rows + 2] = id, redis.call('HGET', record .. ':' .. number_of(id), id) or ''
end
return rows
