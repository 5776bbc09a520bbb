-- sliding_log.lua: the sliding log: every admission of one period is remembered.
-- Twin: `windows.py`. The zset `entries` holds the admissions: 'number:cost' -> time (us); so the cost of a
-- decision does not grow with them. Its part of the state: tag, size, period, sum of their costs, number of the last
-- one, its time, and since when there was always one that counts. Adds to a limit
--   total, number, last, began    as in the state
--   added      {time, number, cost} of admissions that are not in the zset yet
--   is_empty   whether nothing in the zset counts: it is of another definition, or too old

local LOG_FORM = '<BHddddd'
local algorithm = {}

function algorithm.read(limit, state, from)
  limit.total, limit.number, limit.last, limit.began = 0, 0, 0, now
  limit.added, limit.is_empty = {}, true
  if not state then
    return true
  end
  local _, _, period, total, last_number, last, began = struct.unpack(LOG_FORM, state, from)
  if period ~= parameter(limit, 1) then
    return false
  elseif now < last + period then
    limit.total, limit.number, limit.last, limit.began = total, last_number, last, began
    limit.is_empty = false
  end
  return last <= now + FARTHEST, true
end

local function cost_of(member)
  return tonumber(string.sub(member, string.find(member, ':', 1, true) + 1))
end

-- Sum of the costs of the admissions that no longer count at a time.
local function expired_amount(limit, at)
  local ends, amount = at - parameter(limit, 1), 0
  if not limit.is_empty then
    for _, member in ipairs(redis.call('ZRANGE', limit.entries, '-inf', format_integer(ends), 'BYSCORE')) do
      amount = amount + cost_of(member)
    end
  end
  for _, entry in ipairs(limit.added) do
    amount = amount + (entry[1] <= ends and entry[3] or 0)
  end
  return amount
end

local function add(limit, time, cost)
  limit.number, limit.last, limit.total = limit.number + 1, time, limit.total + cost
  limit.added[#limit.added + 1] = { time, limit.number, cost }
end

function algorithm.move_back(limit, state, from)
  if algorithm.read(limit, state, from) then
    return
  end
  local total = limit.total - expired_amount(limit, limit.last)
  limit.added, limit.is_empty, limit.total = {}, true, 0
  add(limit, now, total)
end

function algorithm.fill(limit, amount, at)
  limit.began = at
  add(limit, at, amount)
end

function algorithm.in_use(state, from, at)
  local _, _, period, total, _, last = struct.unpack(LOG_FORM, state, from)
  return at < last + period and total or 0
end

-- The time of the admission with which the oldest ones that count sum up to an amount.
local function time_of(limit, amount)
  local from, sum, size = '(' .. format_integer(now - parameter(limit, 1)), 0, 8
  local offset = 0
  while not limit.is_empty do
    local rows = redis.call('ZRANGE', limit.entries, from, '+inf', 'BYSCORE', 'LIMIT', offset, size,
                            'WITHSCORES')
    for i = 1, #rows, 2 do
      sum = sum + cost_of(rows[i])
      if sum >= amount then
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

function algorithm.check(limit)
  local over = limit.total - expired_amount(limit, now) + limit.cost - limit.burst * MILLION
  return over > 0 and time_of(limit, over) + parameter(limit, 1) - now or 0
end

function algorithm.take(limit, at)
  add(limit, math.max(at, limit.last), limit.cost)
end

function algorithm.write(limit)
  local period = parameter(limit, 1)
  local lasts, rest = limit.last + period - now, limit.total - expired_amount(limit, now)
  if limit.is_empty and redis.call('EXISTS', limit.entries) == 1 then
    redis.call('DEL', limit.entries)
  end
  -- Before what needs no memory: a server that is out of memory refuses the admission at its first write.
  for _, entry in ipairs(limit.added) do
    if entry[1] > now - period then
      redis.call('ZADD', limit.entries, format_integer(entry[1]),
                 format_integer(entry[2]) .. ':' .. format_integer(entry[3]))
    end
  end
  if not limit.is_empty then
    redis.call('ZREMRANGEBYSCORE', limit.entries, '-inf', format_integer(now - period))
  end
  limit.total, limit.added, limit.is_empty = rest, {}, false
  redis.call('PEXPIRE', limit.entries, expiry_ms(lasts))
  return struct.pack(LOG_FORM, limit.tag, 43, period, rest, limit.number, limit.last, limit.began), lasts
end

function algorithm.remaining(limit)
  local used = limit.total - expired_amount(limit, now)
  local reset = used > 0 and limit.last + parameter(limit, 1) - now or 0
  return math.max(0, limit.burst * MILLION - used), reset
end

function algorithm.mark(limit)
  return limit.number, limit.began
end

function algorithm.settle(limit, mark, began, cost, actual)
  local member, time = format_integer(mark) .. ':' .. format_integer(cost), nil
  if not limit.is_empty and began == limit.began then
    time = tonumber(redis.call('ZSCORE', limit.entries, member))
  end
  if time and time > now - parameter(limit, 1) then
    redis.call('ZREM', limit.entries, member)
    limit.total = limit.total + actual - cost
    if actual > 0 then
      member = format_integer(mark) .. ':' .. format_integer(actual)
      redis.call('ZADD', limit.entries, format_integer(time), member)
    end
  elseif actual > cost then
    add(limit, math.max(now, limit.last), actual - cost)
  else
    return false
  end
  return true
end

return algorithm
