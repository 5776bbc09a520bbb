-- fan_outs.lua: what is stored of a fan-out, see `celery_throttle/bulk/fan_out/`. The key `record` is the head of all
-- names.
--
--   record             hash   sent, waiting, done, failed, revoked: number of tasks
--                             closed, cancelled: present if the fan-out is
--                             keep: how long (us) all of it is kept after no task waits
--                             pause, pause_origin: the key that pauses it, and that of who did and why
--                             old_at, old_ended, new_at, new_ended: how many tasks had ended at two times (us)
--                             marked: number of ended tasks whose results are marked after a cancel
--                             name: of the fan-out, as its user wrote it
--                             shards: with several shards, those that have a part of it, each after a space
--   record:queues      hash   key `lines` of a queue -> its number, and its number -> packed keys of the queue
--   record:<number>    hash   for the tasks with that number: task id -> number of its queue, or how it ended; behind a
--                             '-' if the task ignores its result
--   record:ended       list   ids of the ended tasks, in the order of their ends
--
-- Tasks are spread over numbers, so that no key is so large that its expiry blocks the server. While tasks wait,
-- nothing of this expires.

local FAN_OUT_NUMBERS = 64

-- The number of a task. Twin: `Keys.fan_out_number` in `celery_throttle/store/keys.py`.
local function fan_out_number(id)
  return tonumber(string.sub(redis.sha1hex(id), 1, 2), 16) % FAN_OUT_NUMBERS
end

-- Set the expiry of all keys of a fan-out, or remove it (`is_kept`) while tasks wait.
local function expire_fan_out(record, is_kept)
  local pause, pause_origin, keep = unpack(redis.call('HMGET', record, 'pause', 'pause_origin', 'keep'))
  local names = { record, record .. ':ended', record .. ':queues', pause or record, pause_origin or record }
  for number = 0, FAN_OUT_NUMBERS - 1 do
    names[#names + 1] = record .. ':' .. number
  end
  for _, name in ipairs(names) do
    if is_kept then
      redis.call('PERSIST', name)
    else
      redis.call('PEXPIRE', name, expiry_ms(tonumber(keep)))
    end
  end
end

-- Change the number of waiting tasks. If the record has expired, it stays so.
local function change_fan_out_waiting(record, change) -- rare
  if redis.call('EXISTS', record) == 1 then
    local waiting = redis.call('HINCRBY', record, 'waiting', change)
    if waiting <= 0 or waiting == change then
      expire_fan_out(record, waiting > 0)
    end
  end
end

-- Record how a task has ended: 'done', 'failed' or 'revoked'. An outcome that is recorded twice counts once. 'done'
-- replaces another outcome: the task may have run once more.
local function record_fan_out_outcome(record, id, outcome)
  local tasks = record .. ':' .. fan_out_number(id)
  local mark, known = string.match(redis.call('HGET', tasks, id) or '', '^(%-?)(.+)')
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
  redis.call('HSET', tasks, id, mark .. outcome)
  redis.call('HINCRBY', record, outcome, 1)
end
