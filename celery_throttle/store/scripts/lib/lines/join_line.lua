-- join_line.lua: adds a task with its packed row to a line. If the line is not known yet, it waits at the limit
-- `bottleneck` (0 for any), which has room for it after a wait (us).
-- uses: end_line, attach_line, fan_out_waiting
-- uses rarely: repair

local function join_line(line, descriptor, id, score, row, wait, bottleneck)
  local queue, known = descriptor.queue, redis.call('HGET', descriptor.queue[LINES], line)
  if descriptor.temporary then
    redis.call('ZADD', descriptor.temporary, format_integer(now), queue[LINES])
  end
  redis.call('ZADD', line, format_integer(score), id)
  local is_alone = redis.call('ZCARD', line) == 1
  if known then
    local limit_index = string.byte(known, 1)
    local limit_keys = descriptor.limits[limit_index] or select(2, unpack_descriptor(known)).limits[limit_index]
    change_backlog(limit_keys, 1)
    if is_alone then
      -- The line was registered but empty: the server has lost its tasks.
      repair()(queue, line)
    end
    if redis.call('ZRANK', line, id) == 0 then
      update_rank(limit_keys[WAITING], line, descriptor)
      bring_forward(limit_keys, queue, wait)
    end
  elseif descriptor.limits[1] then
    if is_alone then
      count_in_key_caps(descriptor, 1)
    else
      -- The server has lost the descriptor, so the line may be in any of the waiting lists.
      for _, limit_keys in ipairs(descriptor.limits) do
        redis.call('ZREM', limit_keys[WAITING], line)
        drop_empty_list(limit_keys, queue)
      end
    end
    attach_line(line, descriptor, math.max(1, bottleneck), wait)
  elseif is_alone then
    -- A task comes back whose descriptor was lost: only the waiting list is known.
    local waiting = descriptor.limits[0][WAITING]
    enter_list(waiting, line, descriptor)
    redis.call('ZADD', queue[DUE], format_integer(now), waiting)
  end
  redis.call('HSET', queue[MESSAGES], id, row)
  if descriptor.fan_out then
    change_fan_out_waiting(descriptor.fan_out, 1)
  end
end
