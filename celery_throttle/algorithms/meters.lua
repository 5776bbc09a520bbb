-- meters.lua: the algorithms that drain. GCRA, token bucket and leaky bucket are one rule in three forms.
-- Twin: `meters.py`, which explains the rule. A unit is p ticks, and q ticks drain each microsecond: an emission
-- interval of p/q microseconds. Adds to a limit
--   used       ticks in use now
--   at         when (us) it was written: the start of the last take
--   began      since when (us) there was always something in use
--   refunds    packed, see `busy_period.lua`
--
-- Its part of the state: tag, size, at, p, q, began, and two numbers that differ by the form:
--   gcra            theoretical arrival time: microseconds, ticks
--   token-bucket    tokens left (ticks), burst (units)
--   leaky-bucket,   level (ticks), 0
--   leaky-queue
-- Then the refunds.

local METER, METER_SIZE = '<BHdddddd', 51

-- Returns at, level (ticks), p, q, began and the size of a part.
local function unpack_meter(state, from)
  local tag, size, at, p, q, began, first, second = struct.unpack(METER, state, from)
  local level = first
  if tag == GCRA then
    level = (first - at) * q + second
  elseif tag == TOKEN_BUCKET then
    level = second * p - first
  end
  return at, level, p, q, began, size
end

-- The ticks of an amount, rounded up.
local function ticks_of(limit, amount)
  if amount % MILLION == 0 then
    return amount / MILLION * limit.p
  end
  local _, scale_up = scaling()
  return scale_up(amount, limit.p, MILLION)
end

local function read_meter(limit, state, from)
  limit.at, limit.began, limit.used, limit.refunds = now, now, 0, ''
  if not state then
    return true
  end
  local at, level, p, q, began, size = unpack_meter(state, from)
  local is_same = p == limit.p and q == limit.q
  if not is_same or at > now + FARTHEST then
    return false, is_same
  end
  local used = level - (now - at) * q
  if used > 0 then
    limit.used, limit.began = used, began
    if size > METER_SIZE then
      limit.refunds = string.sub(state, from + METER_SIZE, from + size - 1)
    end
  end
  return true, true
end

-- In a leaky-queue, a task in a line starts when all units before it have leaked; a caller outside tasks is granted
-- units with a delay, up to `max_delay`.
local function check_meter(limit, can_park)
  local used, cost = limit.used, limit.cost
  if limit.tag == LEAKY_QUEUE then
    local delay = divide_up(used, limit.q)
    if can_park then
      return delay
    elseif limit.max_delay and delay > limit.max_delay then
      return delay - limit.max_delay
    end
  end
  -- In this order no intermediate result exceeds what a double holds exactly.
  local over = used - limit.burst * limit.p + ticks_of(limit, cost)
  return over > 0 and divide_up(over, limit.q) or 0
end

local function take_meter(limit, at)
  local ahead = (at - now) * limit.q
  local used = limit.used - ahead
  limit.used = (used > 0 and used or 0) + ticks_of(limit, limit.cost) + ahead
  limit.at = at
end

local function write_meter(limit)
  local tag, at, q = limit.tag, limit.at, limit.q
  local level = limit.used - (at - now) * q
  local first, second = level, 0
  if tag == GCRA then
    second = level % q
    first = at + (level - second) / q
  elseif tag == TOKEN_BUCKET then
    first, second = limit.burst * limit.p - level, limit.burst
  end
  local refunds = limit.refunds
  return struct.pack(METER, tag, METER_SIZE + #refunds, at, limit.p, q, limit.began, first, second) .. refunds,
         at - now + divide_up(level, q)
end

local function remaining_meter(limit, fractional)
  local used, p = limit.used, limit.p
  local free = limit.burst * p - used
  free = free > 0 and free or 0
  local rest = free % p
  local amount = (free - rest) / p * MILLION
  if fractional and rest > 0 then
    amount = amount + (scaling()(rest, MILLION, p))
  end
  return amount, divide_up(used, limit.q)
end

-- The functions that most decisions need. `meters_extra.lua` adds the others.
local meters = {
  read = read_meter, check = check_meter, take = take_meter, write = write_meter, remaining = remaining_meter,
}
