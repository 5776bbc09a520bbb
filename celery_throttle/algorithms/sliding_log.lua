-- sliding_log.lua: the sliding log: every admission of one period is remembered.
-- uses: clock, exact
--
-- Library. Twin: `celery_throttle/algorithms/sliding_log.py`. The admissions are a zset, so what a decision
-- costs does not grow with their number: 'number:cost' -> time. Its part of the state: tag, size, period,
-- sum of their costs, number of the last, time of the last, since when there was always one that
-- counts. Of a limit this sets
--   total, number, last, began    as in the state
--   added                  {time, number, cost} of admissions that are not in the zset yet
--   fresh                  whether the zset is of another definition, and does not count

local function make_sliding_log()
  local log, FORM = {}, '<BHddddd'

  function log.read(limit, state, from, now)
    limit.total, limit.number, limit.last, limit.began = 0, 0, 0, now
    limit.added, limit.fresh = {}, true
    if not state then
      return true
    end
    local _, _, period, total, last_number, last, began = struct.unpack(FORM, state, from)
    if period ~= number(limit, 1) then
      return false
    elseif now < last + period then
      limit.total, limit.number, limit.last, limit.began = total, last_number, last, began
      limit.fresh = false
    end
    return last <= now + FARTHEST
  end

  function log.is_of(limit, state, from)
    local _, _, period = struct.unpack(FORM, state, from)
    return period == number(limit, 1)
  end

  local function cost_of(member)
    return tonumber(string.sub(member, string.find(member, ':', 1, true) + 1))
  end

  -- Sum of the costs of the admissions that no longer count at `now`.
  local function gone(limit, now)
    local till, amount = now - number(limit, 1), 0
    if not limit.fresh then
      for _, member in ipairs(redis.call('ZRANGE', limit.entries, '-inf', whole(till), 'BYSCORE')) do
        amount = amount + cost_of(member)
      end
    end
    for _, entry in ipairs(limit.added) do
      amount = amount + (entry[1] <= till and entry[3] or 0)
    end
    return amount
  end

  local function add(limit, time, cost)
    limit.number, limit.last, limit.total = limit.number + 1, time, limit.total + cost
    limit.added[#limit.added + 1] = { time, limit.number, cost }
  end

  function log.move_back(limit, state, from, now)
    if log.read(limit, state, from, now) then
      return
    end
    local total = limit.total - gone(limit, limit.last)
    limit.added, limit.fresh, limit.total = {}, true, 0
    add(limit, now, total)
  end

  function log.fill(limit, amount, at)
    limit.began = at
    add(limit, at, amount)
  end

  function log.in_use(state, from, at)
    local _, _, period, total, _, last = struct.unpack(FORM, state, from)
    return at < last + period and total or 0
  end

  -- Goes through the admissions that count, the oldest first, until so much has been seen: gives the
  -- time of the last one.
  local function time_of(limit, amount, now)
    local from, seen, size = '(' .. whole(now - number(limit, 1)), 0, 8
    local offset = 0
    while not limit.fresh do
      local rows = redis.call('ZRANGE', limit.entries, from, '+inf', 'BYSCORE', 'LIMIT', offset, size,
                              'WITHSCORES')
      for i = 1, #rows, 2 do
        seen = seen + cost_of(rows[i])
        if seen >= amount then
          return tonumber(rows[i + 1])
        end
      end
      if #rows < 2 * size then
        break
      end
      offset, size = offset + size, 128
    end
    return limit.last
  end

  function log.check(limit, now)
    local over = limit.total - gone(limit, now) + limit.cost - limit.burst * MILLION
    return over > 0 and time_of(limit, over, now) + number(limit, 1) - now or 0
  end

  function log.take(limit, _, at)
    add(limit, math.max(at, limit.last), limit.cost)
  end

  function log.write(limit, now, given)
    local period = number(limit, 1)
    local lasts, rest = limit.last + period - now, limit.total - gone(limit, now)
    if limit.fresh then
      redis.call('DEL', limit.entries)
    else
      redis.call('ZREMRANGEBYSCORE', limit.entries, '-inf', whole(now - period))
    end
    for _, entry in ipairs(limit.added) do
      if entry[1] > now - period then
        redis.call('ZADD', limit.entries, whole(entry[1]), whole(entry[2]) .. ':' .. whole(entry[3]))
      end
    end
    limit.total, limit.added, limit.fresh = rest, {}, false
    redis.call('PEXPIRE', limit.entries, expiry(lasts, given))
    return struct.pack(FORM, limit.tag, 43, period, rest, limit.number, limit.last, limit.began), lasts
  end

  function log.left(limit, now)
    local used = limit.total - gone(limit, now)
    local reset = used > 0 and limit.last + number(limit, 1) - now or 0
    return math.max(0, limit.burst * MILLION - used), reset
  end

  function log.mark(limit)
    return limit.number, limit.began
  end

  function log.settle(limit, mark, began, cost, actual, now)
    local member, time = whole(mark) .. ':' .. whole(cost), 0
    if not limit.fresh and began == limit.began then
      time = tonumber(redis.call('ZSCORE', limit.entries, member) or 0)
    end
    if time > now - number(limit, 1) then
      redis.call('ZREM', limit.entries, member)
      limit.total = limit.total + actual - cost
      if actual > 0 then
        redis.call('ZADD', limit.entries, whole(time), whole(mark) .. ':' .. whole(actual))
      end
    elseif actual > cost then
      add(limit, math.max(now, limit.last), actual - cost)
    else
      return false
    end
    return true
  end

  return log
end
