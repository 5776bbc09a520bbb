-- record_outcomes.lua: tasks of a fan-out have ended.
-- uses: fan_out
--
-- KEYS  1   record of the fan-out
-- ARGV  1   now (us), or '' for the server's clock
--       2   how long (us) to see how fast they end
--       3   how long (us) after the last end that says nothing
--       then per task: its id, how it ended: 'done', 'failed' or 'revoked'

local record, now, seen = KEYS[1], clock(ARGV[1]), tonumber(ARGV[2])
local waiting, keep, new_at = unpack(redis.call('HMGET', record, 'waiting', 'keep', 'new_at'))
if not keep then
  return
end
-- A server that is out of memory carries out a script whose first write takes something away.
redis.call('HDEL', record, '')
local before = redis.call('LLEN', record .. ':ended')
for i = 4, #ARGV, 2 do
  fan_out_ended(record, ARGV[i], ARGV[i + 1])
end
local ended = redis.call('LLEN', record .. ':ended')
if now - tonumber(new_at) > tonumber(ARGV[3]) then
  redis.call('HSET', record, 'old_at', whole(now), 'old_ended', before,
             'new_at', whole(now), 'new_ended', before)
elseif now - tonumber(new_at) > seen then
  redis.call('HSET', record, 'old_at', new_at, 'old_ended', redis.call('HGET', record, 'new_ended'),
             'new_at', whole(now), 'new_ended', ended)
end
if tonumber(waiting or 0) <= 0 then
  fan_out_expires(record, ARGV[1])
end
