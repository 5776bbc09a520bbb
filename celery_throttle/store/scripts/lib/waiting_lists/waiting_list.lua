-- waiting_list.lua: what every change of a line keeps right besides: the backlog of a limit and its waiting lists.
-- uses: clock, line_data, fan_out_name
-- KEYS  last  head of the totals, see `counters.lua`
-- `limit_keys` are the keys of one limit in a descriptor, see `line_data.lua`.

-- Change the backlog of one key among those of its name: a zset of the keys with waiting tasks -> how many wait; the
-- member '' has their sum. No change stands for minus all. Fan-outs count their waiting tasks in their records.
local function change_key_backlog(limit_keys, change)
  local name, field = limit_keys[NAME], limit_keys[FIELD]
  if name == field or name == FAN_OUT_NAME then
    return
  end
  local backlogs, key = KEYS[#KEYS] .. name .. '/keys', string.sub(field, #name + 2)
  change = change or -(redis.call('ZSCORE', backlogs, key) or 0)
  if change == 0 then
    return
  end
  redis.call('ZINCRBY', backlogs, change, '')
  if tonumber(redis.call('ZINCRBY', backlogs, change, key)) <= 0 then
    redis.call('ZREM', backlogs, key)
    if redis.call('ZCARD', backlogs) == 1 then
      redis.call('DEL', backlogs)
    end
  end
end

local function change_backlog(limit_keys, change)
  if change ~= 0 and limit_keys[BACKLOG] then
    if redis.call('INCRBY', limit_keys[BACKLOG], change) <= 0 then
      redis.call('DEL', limit_keys[BACKLOG])
    end
    change_key_backlog(limit_keys, change)
  end
end

-- Register a waiting list with its limit, so that a change of the limit finds it. Returns whether it was not
-- registered before.
local function register_list(limit_keys, queue)
  redis.call('SADD', limit_keys[WAITING_LIST_INDEX], limit_keys[WAITING_LISTS])
  local queue_keys = cmsgpack.pack({ queue[DUE], queue[POLLS] })
  return redis.call('HSET', limit_keys[WAITING_LISTS], limit_keys[WAITING], queue_keys) == 1
end

-- The due time after a wait (us), as text. A negative wait is a cost that never passes: the task is handed out at
-- once.
local function due_time(wait)
  return format_integer(now + math.max(0, wait))
end

-- Let a waiting list be due after a wait (us), unless it is due before.
local function bring_forward(limit_keys, queue, wait)
  redis.call('ZADD', queue[DUE], 'XX', 'LT', due_time(wait), limit_keys[WAITING])
end

-- Drop a waiting list if it is empty, which the caller may know. Call this after a line has left it.
local function drop_empty_list(limit_keys, queue, is_empty)
  if is_empty or redis.call('EXISTS', limit_keys[WAITING]) == 0 then
    redis.call('ZREM', queue[DUE], limit_keys[WAITING])
    if limit_keys[WAITING_LISTS] then
      redis.call('HDEL', limit_keys[WAITING_LISTS], limit_keys[WAITING])
      if redis.call('EXISTS', limit_keys[WAITING_LISTS]) == 0 then
        redis.call('SREM', limit_keys[WAITING_LIST_INDEX], limit_keys[WAITING_LISTS])
        redis.call('DEL', limit_keys[BACKLOG])
        change_key_backlog(limit_keys)
      end
    end
  end
end
