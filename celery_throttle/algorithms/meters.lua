-- meters.lua: algorithms that drain: GCRA, token bucket and leaky bucket, one rule in three forms.
-- uses: clock, exact, tags
--
-- Library. Twin: `celery_throttle/algorithms/meters.py`, which explains the rule. An emission interval
-- of p/q microseconds a unit makes a unit p ticks, and a microsecond q. Of a limit it sets `used`: the
-- ticks in use now.
--
-- Its part of the state: tag, size, at (when it was written: the start of what was taken last), p, q,
-- began (since when there was always something in use), and two numbers of each form's own:
--   gcra            the theoretical arrival time: microseconds, ticks
--   token-bucket    tokens left (ticks), burst (units)
--   leaky-bucket,   level (ticks), 0
--   leaky-queue
-- Then what was refunded since it began; see `meters.settle`.

local METER, METER_SIZE = '<BHdddddd', 51

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

local function ticks_of(limit, cost)
  if cost % MILLION == 0 then
    return cost / MILLION * limit.p
  end
  local _, _, scaled_up = exact()
  return scaled_up(cost, limit.p, MILLION)
end

local function read_meter(limit, state, from, now)
  limit.at, limit.began = now, now
  if not state then
    return true
  end
  local at, level, p, q, began, size = unpack_meter(state, from)
  if p ~= limit.p or q ~= limit.q or at > now + FARTHEST then
    return false
  end
  local used = level - (now - at) * q
  if used > 0 then
    limit.used, limit.began = used, began
    if size > METER_SIZE then
      limit.refunds = string.sub(state, from + METER_SIZE, from + size - 1)
    end
  end
  return true
end

-- A task in a line starts when all before it have leaked; a caller outside tasks is given a delay.
local function check_meter(limit, _, lined)
  local used, cost = limit.used, limit.cost
  if limit.tag == LEAKY_QUEUE then
    local delay = divided_up(used, limit.q)
    if lined then
      return delay
    elseif limit.longest and delay > limit.longest then
      return delay - limit.longest
    end
  end
  -- In this order no sum leaves what a double holds exactly.
  local over = used - limit.burst * limit.p + ticks_of(limit, cost)
  return over > 0 and divided_up(over, limit.q) or 0
end

local function take_meter(limit, now, at)
  local ahead = (at - now) * limit.q
  local used = limit.used - ahead
  limit.used = (used > 0 and used or 0) + ticks_of(limit, limit.cost) + ahead
  limit.at = at
end

local function write_meter(limit, now)
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
         at - now + divided_up(level, q)
end

local function left_meter(limit, _, exactly)
  local used, p = limit.used, limit.p
  local free = limit.burst * p - used
  free = free > 0 and free or 0
  local rest = free % p
  local amount = (free - rest) / p * MILLION
  if exactly and rest > 0 then
    amount = amount + exact()(rest, MILLION, p)
  end
  return amount, divided_up(used, limit.q)
end

-- With `meters_extra.lua` this is the algorithm.
local meters = {
  read = read_meter, check = check_meter, take = take_meter, write = write_meter, left = left_meter,
}
