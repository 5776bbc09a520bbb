-- attach_line.lua: lets a line wait at one of its limits, whose waiting list is due after a wait (us).
-- uses: fair_queue, waiting_list, descriptor
-- uses rarely: repair

local function attach_line(line, descriptor, limit_index, wait)
  local limit_keys, queue = descriptor.limits[limit_index], descriptor.queue
  local waiting = limit_keys[WAITING]
  redis.call('HSET', queue[LINES], line, pack_descriptor(limit_index, descriptor))
  change_backlog(limit_keys, redis.call('ZCARD', line))
  enter_list(waiting, line, descriptor)
  if redis.call('ZCARD', waiting) == 1 then
    redis.call('ZADD', queue[DUE], due_time(wait), waiting)
    -- If the list was registered, the server has lost its other lines. If it alone is due and there are other lines,
    -- the server has lost what else was due.
    local is_new = register_list(limit_keys, queue)
    if not is_new then
      redis.call('DEL', waiting)
    end
    if not is_new or redis.call('ZCARD', queue[DUE]) == 1 and redis.call('HLEN', queue[LINES]) > 1 then
      repair()(queue)
    end
  elseif redis.call('ZRANK', waiting, line) == 0 then
    bring_forward(limit_keys, queue, wait)
  end
end
