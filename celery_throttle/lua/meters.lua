-- meters.lua: algorithms that drain: GCRA, token bucket and leaky bucket, one rule in three forms.
-- uses: clock, exact, tags
--
-- Library. Twin: `celery_throttle/reference/meters.py`, which explains the rule. An emission interval
-- of p/q microseconds a unit makes a unit p ticks, and a microsecond q. Of a limit it sets `used`: the
-- ticks in use now.
--
-- Its part of the state: tag, size, at (when it was written: the start of what was taken last), p, q,
-- refunded (see `meters.settle`), and two numbers of each form's own:
--   gcra            the theoretical arrival time: microseconds, ticks
--   token-bucket    tokens left (ticks), burst (units)
--   leaky-bucket,   level (ticks), 0
--   leaky-queue

local METER = '<BHdddddd'

local function unpack_meter(state, from)
  local tag, _, at, p, q, refunded, first, second = struct.unpack(METER, state, from)
  if tag == GCRA then
    return at, (first - at) * q + second, p, q, refunded
  elseif tag == TOKEN_BUCKET then
    return at, second * p - first, p, q, refunded
  end
  return at, first, p, q, refunded
end

local function ticks_of(limit, cost)
  if cost % MILLION == 0 then
    return cost / MILLION * limit.p
  end
  local _, _, scaled_up = exact()
  return scaled_up(cost, limit.p, MILLION)
end

local function read_meter(limit, state, from, now)
  limit.at = now
  if not state then
    return true
  end
  local at, level, p, q, refunded = unpack_meter(state, from)
  if p ~= limit.p or q ~= limit.q or at > now + FARTHEST then
    return false
  end
  limit.refunded = refunded
  local used = level - (now - at) * q
  limit.used = used > 0 and used or 0
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
  return struct.pack(METER, tag, 51, at, limit.p, q, limit.refunded, first, second), at - now + divided_up(level, q)
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

-- With `meters_rest.lua` this is the algorithm.
local meters = {
  read = read_meter, check = check_meter, take = take_meter, write = write_meter, left = left_meter,
}
