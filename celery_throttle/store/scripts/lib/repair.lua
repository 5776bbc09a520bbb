-- repair.lua: makes anew what is missing of the lines of a queue, where the server has lost a key.
-- uses: fair_queue
--
-- Library, of which nothing is made before something is missing. Returns a function of the queue, the
-- time, and a line that has lost its tasks and has got new ones since, if there is one. Messages tell which
-- tasks wait in a line, about-tables tell which lines wait at a limit.

return function(queue, now, again)
  local found, lost, missing = redis.call('HGETALL', queue[LINES]), {}, {}
  for i = 1, #found, 2 do
    local line = found[i]
    local at, about = unpack_line(found[i + 1])
    local limit = about.limits[at]
    local waiting = limit[WAITING]
    if not redis.call('ZSCORE', waiting, line) then
      enter(waiting, line, about)
      missing[waiting] = true
    end
    if missing[waiting] or not redis.call('ZSCORE', queue[DUE], waiting) then
      register(limit, queue)
      redis.call('ZADD', queue[DUE], whole(now), waiting)
    end
    if line == again or redis.call('EXISTS', line) == 0 then
      lost[line] = { about, limit }
    end
  end

  local cursor = next(lost) and '0'
  while cursor do
    local messages = redis.call('HSCAN', queue[MESSAGES], cursor, 'COUNT', 1000)
    for i = 1, #messages[2], 2 do
      local line, _, _, _, _, score = unpack(cmsgpack.unpack(messages[2][i + 1]))
      if lost[line] then
        redis.call('ZADD', line, whole(score), messages[2][i])
      end
    end
    cursor = messages[1] ~= '0' and messages[1]
  end

  for line, parts in pairs(lost) do
    local about, limit = unpack(parts)
    if redis.call('EXISTS', line) == 0 then
      redis.call('ZREM', limit[WAITING], line)
      forget(line, about, now)
      tidy(limit, queue)
    else
      follow(limit[WAITING], line, about)
    end
  end
end
