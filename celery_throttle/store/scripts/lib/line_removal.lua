-- line_removal.lua: a task leaves its line from anywhere in it, or comes back to where it stood.
-- uses: lines
--
-- Library, of those who do other things with lines than claim what is due.

-- Where a task of a queue waits: its line, the limit at which that waits, its about-table, and what is kept of
-- the task; nil if nowhere.
local function line_of(queue, id)
  local packed = redis.call('HGET', queue[MESSAGES], id)
  local line = packed and cmsgpack.unpack(packed)[1]
  local found = line and redis.call('ZSCORE', line, id) and redis.call('HGET', queue[LINES], line)
  if found then
    local at, about = unpack_line(found)
    return line, at, about, packed
  end
end

-- A task has left its line from anywhere in it: puts right where the line waits.
local function close_up(line, about, at, now)
  local limit = about.limits[at]
  if redis.call('EXISTS', line) == 0 then
    redis.call('ZREM', limit[WAITING], line)
    tidy(limit, about.queue)
  else
    follow(limit[WAITING], line, about)
  end
  hurry(limit, about.queue, now, 0)
end

-- A task that a worker had goes back to its line, unless it waits again already, or its fan-out was cancelled.
local function rejoin(line, about, id, score, packed, now, given)
  if redis.call('HEXISTS', about.queue[MESSAGES], id) == 1 then
    return
  end
  if about.fan_out and redis.call('HEXISTS', about.fan_out, 'cancelled') == 1 then
    fan_out_ended(about.fan_out, id, 'revoked')
    fan_out_waits(about.fan_out, 0, given)
    return
  end
  join(line, about, id, tonumber(score), packed, now, 0, 1)
  wake(about.queue, now, now)
end
