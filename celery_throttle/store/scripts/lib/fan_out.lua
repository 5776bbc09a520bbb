-- fan_out.lua: what is kept of a fan-out: which tasks were sent, how many wait, and how they ended.
-- uses: clock
--
-- Library. Of a fan-out whose record is the key `record`, see `celery_throttle/fanout/`:
--
--   record             hash   sent, waiting, done, failed, revoked: how many tasks; closed, cancelled: there if it
--                             is; keep: how long (us) all of it is kept after nothing waits; pause: key that
--                             pauses it; old_at, old_ended, new_at, new_ended: how many had ended at two times;
--                             told: how many of those that ended were looked through after a cancel
--   record:queues      hash   key `lines` of a queue -> its number; its number -> its packed keys
--   record:<number>    hash   of the tasks with that number: task id -> number of its queue, or how it ended
--   record:ended       list   ids of the tasks that have ended, in that order
--
-- The numbers of tasks spread them, so that none of these keys is so large that its end stops the server.
-- While tasks wait nothing of this expires.

local NUMBERS = 64

-- The number of a task; twin: `Keys.fan_out_number`.
local function number_of(id)
  return tonumber(string.sub(redis.sha1hex(id), 1, 2), 16) % NUMBERS
end

local function fan_out_each(record, action, ...)
  local pause = redis.call('HGET', record, 'pause')
  for _, name in ipairs({ record, record .. ':ended', record .. ':queues', pause or nil }) do
    redis.call(action, name, ...)
  end
  for number = 0, NUMBERS - 1 do
    redis.call(action, record .. ':' .. number, ...)
  end
end

local function fan_out_expires(record, given)
  fan_out_each(record, 'PEXPIRE', expiry(tonumber(redis.call('HGET', record, 'keep')), given))
end

-- So many more of its tasks wait. What is known of it may be gone already: then it stays so.
local function fan_out_waits(record, change, given)
  if redis.call('EXISTS', record) == 0 then
    return
  end
  local waiting = redis.call('HINCRBY', record, 'waiting', change)
  if waiting <= 0 then
    fan_out_expires(record, given)
  elseif waiting == change then
    fan_out_each(record, 'PERSIST')
  end
end

-- A task has ended. Told twice, it counts once; what was told to have failed, or to be revoked, may have run
-- once more all the same.
local function fan_out_ended(record, id, outcome)
  local tasks = record .. ':' .. number_of(id)
  local known = redis.call('HGET', tasks, id)
  if not known or known == outcome or known == 'done' then
    return
  end
  if tonumber(known) then
    redis.call('RPUSH', record .. ':ended', id)
  elseif outcome == 'done' then
    redis.call('HINCRBY', record, known, -1)
  else
    return
  end
  redis.call('HSET', tasks, id, outcome)
  redis.call('HINCRBY', record, outcome, 1)
end
