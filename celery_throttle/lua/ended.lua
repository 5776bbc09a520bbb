-- ended.lua: tasks of a fan-out have ended. Told twice, it counts once.
-- uses: fan_out
--
-- KEYS  1   record of the fan-out
-- ARGV  1   now (us), or '' for the server's clock
--       2   how long (us) to see how fast they end
--       then per task: its number, its id, how it ended: 'done', 'failed' or 'revoked'

local record, now = KEYS[1], clock(ARGV[1])
local known = redis.call('HMGET', record, 'waiting', 'keep', 'new_at', 'new_ended')
local waiting, keep, new_at, new_ended = unpack(known)
if not keep then
  return
end
for i = 3, #ARGV, 3 do
  local tasks, id, outcome = record .. ':' .. ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('HGET', tasks, id) == '' then
    redis.call('HSET', tasks, id, outcome)
    redis.call('HINCRBY', record, outcome, 1)
    redis.call('RPUSH', record .. ':ended', id)
  end
end
if now - tonumber(new_at) > tonumber(ARGV[2]) then
  redis.call('HSET', record, 'old_at', new_at, 'old_ended', new_ended,
             'new_at', whole(now), 'new_ended', redis.call('LLEN', record .. ':ended'))
end
if tonumber(waiting or 0) <= 0 then
  fan_out_each(record, 'PEXPIRE', expiry(tonumber(keep), ARGV[1]))
end
