-- due.lua: when the first line of a waiting list is due.
-- uses: clock, line_data

-- The due time after a wait (us), as text. A negative wait is a cost that never passes: the task is handed out at
-- once.
local function due_time(wait)
  return format_integer(now + math.max(0, wait))
end

-- Let a waiting list be due after a wait (us), unless it is due before.
local function bring_forward(limit_keys, queue, wait)
  redis.call('ZADD', queue[DUE], 'XX', 'LT', due_time(wait), limit_keys[WAITING])
end
