-- repair.lua: rebuilds what the server has lost of the lines of a queue.
-- Rows tell which tasks wait in a line; descriptors tell which lines wait at a limit. Returns a
-- function of the queue, and of a line that has lost its tasks and got new ones since; nil if there is none.

return function(queue, refilled)
  local found, lost, incomplete = redis.call('HGETALL', queue[LINES]), {}, {}
  local known_tasks = 0
  for i = 1, #found, 2 do
    local line = found[i]
    local limit_index, descriptor = unpack_descriptor(found[i + 1])
    if descriptor then
      local limit_keys = descriptor.limits[limit_index]
      local waiting = limit_keys[WAITING]
      if not redis.call('ZSCORE', waiting, line) then
        enter_list(waiting, line, descriptor)
        incomplete[waiting] = true
      end
      if incomplete[waiting] or not redis.call('ZSCORE', queue[DUE], waiting) then
        if limit_index > 0 then
          register_list(limit_keys, queue)
        end
        redis.call('ZADD', queue[DUE], now, waiting)
      end
      local tasks = redis.call('ZCARD', line)
      known_tasks = known_tasks + tasks
      if line == refilled or tasks == 0 then
        lost[line] = { descriptor, limit_keys }
      end
    else -- as if the server had lost it
      redis.call('HDEL', queue[LINES], line)
    end
  end

  local cursor = (next(lost) or redis.call('HLEN', queue[MESSAGES]) > known_tasks) and '0'
  while cursor do
    local rows = redis.call('HSCAN', queue[MESSAGES], cursor, 'COUNT', 10) -- as rows may be large
    for i = 1, #rows[2], 2 do
      local row = unpack_row(rows[2][i + 1])
      if row and lost[row[LINE]] then
        redis.call('ZADD', row[LINE], row[SCORE], rows[2][i])
      end
    end
    cursor = rows[1] ~= '0' and rows[1]
  end

  for line, parts in pairs(lost) do
    local descriptor, limit_keys = unpack(parts)
    if redis.call('EXISTS', line) == 0 then
      redis.call('ZREM', limit_keys[WAITING], line)
      end_line(line, descriptor)
      drop_empty_list(limit_keys, queue)
    else
      update_rank(limit_keys[WAITING], line, descriptor)
    end
  end
end
