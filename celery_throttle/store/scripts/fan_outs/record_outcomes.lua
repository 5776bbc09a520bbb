-- record_outcomes.lua: records how tasks of a fan-out have ended.
-- KEYS  1   record of the fan-out, see `fan_outs.lua`
-- ARGV  2   interval (us) between the two times at which ended tasks were counted, to measure their rate
--       3   age (us) of a count beyond which it says nothing of the rate
--       then per task: its id; 'done', 'failed' or 'revoked'

local record, interval = KEYS[1], tonumber(ARGV[2])
local waiting, keep, new_at = unpack(redis.call('HMGET', record, 'waiting', 'keep', 'new_at'))
if not keep then
  return
end
work_without_memory()
local before = redis.call('LLEN', record .. ':ended')
for i = 4, #ARGV, 2 do
  record_fan_out_outcome(record, ARGV[i], ARGV[i + 1])
end
local ended = redis.call('LLEN', record .. ':ended')
if now - tonumber(new_at) > tonumber(ARGV[3]) then
  redis.call('HSET', record, 'old_at', format_integer(now), 'old_ended', before,
             'new_at', format_integer(now), 'new_ended', before)
elseif now - tonumber(new_at) > interval then
  redis.call('HSET', record, 'old_at', new_at, 'old_ended', redis.call('HGET', record, 'new_ended'),
             'new_at', format_integer(now), 'new_ended', ended)
end
if tonumber(waiting or 0) <= 0 then
  expire_fan_out(record, false)
end
