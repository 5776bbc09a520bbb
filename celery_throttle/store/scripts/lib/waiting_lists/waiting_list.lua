-- waiting_list.lua: what every change of a line keeps right besides: the backlog of a limit and its waiting lists.
-- uses: line_data
--
-- `limit_keys` are the keys of one limit in a descriptor, see `line_data.lua`.

local function change_backlog(limit_keys, change)
  if change ~= 0 and limit_keys[BACKLOG] and redis.call('INCRBY', limit_keys[BACKLOG], change) <= 0 then
    redis.call('DEL', limit_keys[BACKLOG])
  end
end

-- Register a waiting list with its limit, so that a change of the limit finds it. Returns whether it was not
-- registered before.
local function register_list(limit_keys, queue)
  redis.call('SADD', limit_keys[WAITED], limit_keys[WAITS])
  local queue_keys = cmsgpack.pack({ queue[DUE], queue[ASKS] })
  return redis.call('HSET', limit_keys[WAITS], limit_keys[WAITING], queue_keys) == 1
end

-- Drop a waiting list if it is empty, which the caller may know. Call this after a line has left it.
local function drop_empty_list(limit_keys, queue, is_empty)
  if is_empty or redis.call('EXISTS', limit_keys[WAITING]) == 0 then
    redis.call('ZREM', queue[DUE], limit_keys[WAITING])
    if limit_keys[WAITS] then
      redis.call('HDEL', limit_keys[WAITS], limit_keys[WAITING])
      if redis.call('EXISTS', limit_keys[WAITS]) == 0 then
        redis.call('SREM', limit_keys[WAITED], limit_keys[WAITS])
        redis.call('DEL', limit_keys[BACKLOG])
      end
    end
  end
end
