-- fan_out.lua: what is stored of a fan-out, see `celery_throttle/bulk/fan_out/`. The key `record` is the head of all names.
--
--   record             hash   sent, waiting, done, failed, revoked: number of tasks
--                             closed, cancelled: present if the fan-out is
--                             keep: how long (us) all of it is kept after no task waits
--                             pause, pause_origin: the key that pauses it, and that of who did and why
--                             old_at, old_ended, new_at, new_ended: how many tasks had ended at two times (us)
--                             told: how many ended tasks were read after a cancel
--                             name: of the fan-out, as its user wrote it
--   record:queues      hash   key `lines` of a queue -> its number, and its number -> packed keys of the queue
--   record:<number>    hash   for the tasks with that number: task id -> number of its queue, or how it ended
--   record:ended       list   ids of the ended tasks, in the order of their ends
--
-- Tasks are spread over numbers, so that no key is so large that its expiry blocks the server. While tasks wait,
-- nothing of this expires.

local FAN_OUT_NUMBERS = 64

-- The number of a task. Twin: `Keys.fan_out_number` in `celery_throttle/store/keys.py`.
local function fan_out_number(id)
  return tonumber(string.sub(redis.sha1hex(id), 1, 2), 16) % FAN_OUT_NUMBERS
end
