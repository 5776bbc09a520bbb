-- list_results.lua: lists the ended tasks of a fan-out, in the order of their ends.
-- KEYS  1   record of the fan-out, see `fan_outs.lua`
-- ARGV  1   index of the first, from 0
--       2   index of the last
--       3   '1' to record that the results of those before the first are marked as revoked
-- Reply {task id, how it ended, behind a '-' if it ignores its result, ...}

local record, results = KEYS[1], {}
if ARGV[3] == '1' and redis.call('EXISTS', record) == 1 then
  work_without_memory()
  redis.call('HSET', record, 'marked', ARGV[1])
end
for _, id in ipairs(redis.call('LRANGE', record .. ':ended', ARGV[1], ARGV[2])) do
  local outcome = redis.call('HGET', record .. ':' .. fan_out_number(id), id)
  results[#results + 1], results[#results + 2] = id, outcome or ''
end
return results
