-- fan_out.lua: what is kept of a fan-out: which tasks were sent, how many wait, and how they ended.
-- uses: clock
--
-- Library. Of a fan-out whose record is the key `record`, see `celery_throttle/fanout/`:
--
--   record             hash   sent, waiting, done, failed, revoked: how many tasks; began, closed, cancelled:
--                             when (us); keep: how long (us) all of it is kept after nothing waits;
--                             queue:<lines>: for each queue in which its tasks wait or waited;
--                             old_at, old_ended, new_at, new_ended: how many had ended at two times
--   record:<number>    hash   task id -> how it ended, '' if it has not: of the tasks with that number
--   record:ended       list   ids of the tasks that have ended, in that order
--
-- The numbers spread the tasks, so that none of these keys is so large that its end stops the server.
-- While tasks wait nothing of this expires.

local NUMBERS = 64

local function fan_out_each(record, action, ...)
  redis.call(action, record, ...)
  redis.call(action, record .. ':ended', ...)
  for number = 0, NUMBERS - 1 do
    redis.call(action, record .. ':' .. number, ...)
  end
end

-- So many more of its tasks wait. What is known of it may be gone already: then it stays so.
local function fan_out_waits(record, change, given)
  if redis.call('EXISTS', record) == 0 then
    return
  end
  local waiting = redis.call('HINCRBY', record, 'waiting', change)
  if waiting <= 0 then
    fan_out_each(record, 'PEXPIRE', expiry(tonumber(redis.call('HGET', record, 'keep')), given))
  elseif waiting == change then
    fan_out_each(record, 'PERSIST')
  end
end
