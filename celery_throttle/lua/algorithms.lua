-- algorithms.lua: how each algorithm keeps what is in use of a limit.
--
-- Library, no keys and no arguments of its own: `decide.lua` reads and writes the state.
-- Time is integer microseconds. An emission interval of p/q microseconds a unit is kept as the
-- two integers p and q, and every amount is counted in q-ths of a microsecond ("ticks"), so that
-- no rate is ever rounded. `celery_throttle/reference.py` holds the same functions in Python.
--
-- An algorithm is a table of
--   tag                         first byte of its states
--   pack(limit, used, at)       the state in which `used` ticks are in use at the time `at`
--   used(body, at)              ticks in use at the time `at`, by the p and q it was packed with;
--                               then these p and q, and since when the definition it was packed
--                               under is in force

local algorithms = {}

-- GCRA (ITU-T I.371, the virtual scheduling form): the state is the theoretical arrival time.
algorithms['gcra'] = {
  tag = 'g',
  pack = function(limit, used, at)
    local ticks = used % limit.q
    return struct.pack('<ddddd', at + (used - ticks) / limit.q, ticks, limit.p, limit.q,
                       limit.since)
  end,
  used = function(body, at)
    local tat, ticks, p, q, since = struct.unpack('<ddddd', body)
    return (tat - at) * q + ticks, p, q, since
  end,
}

-- Token bucket with lazy refill: the state is the tokens left (in ticks) and when they were counted.
algorithms['token-bucket'] = {
  tag = 't',
  pack = function(limit, used, at)
    return struct.pack('<dddddd', limit.burst * limit.p - used, at, limit.burst, limit.p, limit.q,
                       limit.since)
  end,
  used = function(body, at)
    local tokens, counted, burst, p, q, since = struct.unpack('<dddddd', body)
    return burst * p - tokens - (at - counted) * q, p, q, since
  end,
}

local by_tag = {}
for _, algorithm in pairs(algorithms) do
  by_tag[algorithm.tag] = algorithm
end

-- The farthest a slot is ever booked ahead, in microseconds (see FARTHEST in reference.py). More
-- than this above the capacity can only come from a clock that stepped back or from a limit that
-- was made smaller, and is forgiven.
local FARTHEST = 20000

-- What the scripts count is exact up to here (see MAX_EXACT in limits.py).
local MAX_EXACT = 4503599627370496

local function clip(limit, used)
  return math.max(0, math.min(used, limit.burst * limit.p + FARTHEST * limit.q))
end

local function pack_state(limit, used, at)
  return limit.algorithm.tag .. limit.algorithm.pack(limit, used, at)
end

-- ceil(a * b / c) for a < c, digit by digit: the product may be too large to be exact.
local function scaled_up(a, b, c)
  local whole, rest = 0, 0
  for shift = 42, 0, -7 do
    rest = rest * 128 + a * (math.floor(b / 2 ^ shift) % 128)
    local times = math.floor(rest / c)
    whole, rest = whole * 128 + times, rest - times * c
  end
  return rest > 0 and whole + 1 or whole
end

-- Ticks of an interval of p/q as ticks of this limit: as many units, rounded up.
local function convert(limit, used, p, q)
  used = math.max(0, math.min(used, MAX_EXACT + FARTHEST * q))
  local units = math.floor(used / p)
  return clip(limit, units * limit.p + scaled_up(used - units * p, limit.p, p))
end

-- Ticks in use at `now`, and whether the state must be packed anew because the clock stepped back:
-- it lies beyond what can be booked, or the definition is not in force yet. Left as it is, the time
-- that was forgiven would have to pass all the same.
--
-- A state that was packed under another definition keeps its units, not its time: one unit used
-- under "1/h" holds back one unit, not one hour, when the limit becomes "100/s". Its units are paid
-- off at the old rate until the limit changed, and at the new one from then on. If the limit
-- changed more than once since, nothing counts as paid off between these changes: too little may be
-- admitted, never too much.
local function used_at(limit, state, now)
  local algorithm, body = by_tag[string.sub(state, 1, 1)], string.sub(state, 2)
  local used, p, q, since = algorithm.used(body, now)
  if since == limit.since and p == limit.p and q == limit.q then
    local cut = clip(limit, used)
    return cut, cut < used
  end
  local old_since = tonumber(limit.old_since)
  local paid_until = since == old_since and limit.since or old_since
  used = convert(limit, (algorithm.used(body, math.min(paid_until, now))), p, q)
  return math.max(0, used - math.max(0, now - limit.since) * limit.q), now < limit.since
end
