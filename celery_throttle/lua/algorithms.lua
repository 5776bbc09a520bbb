-- algorithms.lua: how each algorithm reads its state, tells the wait, and takes a cost.
--
-- Library, no keys and no arguments of its own: `decide.lua` reads and writes the state.
-- Time is integer microseconds. An emission interval of p/q microseconds a unit is kept as the
-- two integers p and q, and every amount is counted in q-ths of a microsecond ("ticks"), so that
-- no rate is ever rounded. `celery_throttle/reference.py` holds the same functions in Python.
--
-- An algorithm is a table of
--   used(limit, state, now)     ticks of capacity in use at `now`; may exceed the capacity by
--                               what is booked ahead
--   state(limit, used, at)      what to keep when `used` ticks are in use at the time `at`
-- The rest follows from these two, see `decide.lua`.

-- The farthest a slot is ever booked ahead, in microseconds (see FARTHEST in reference.py). More
-- than this above the capacity can only come from a clock that stepped back or from a limit that
-- was made smaller, and is forgiven.
local FARTHEST = 20000

local algorithms = {}

local function clip(limit, used)
  return math.max(0, math.min(used, limit.burst * limit.p + FARTHEST * limit.q))
end

-- A state that was written under another rate keeps its units, not its time: one unit used under
-- "1/h" holds back one unit, not one hour, when the limit becomes "100/s".
local function convert(limit, used, p, q)
  if p == limit.p and q == limit.q then
    return clip(limit, used)
  end
  return clip(limit, math.ceil(math.max(0, used) / p * limit.p))
end

-- GCRA (ITU-T I.371, the virtual scheduling form): the state is the theoretical arrival time.
algorithms['gcra'] = {
  used = function(limit, state, now)
    local tat, ticks, p, q = struct.unpack('<dddd', state)
    return convert(limit, (tat - now) * q + ticks, p, q)
  end,
  state = function(limit, used, at)
    local ticks = used % limit.q
    return struct.pack('<dddd', at + (used - ticks) / limit.q, ticks, limit.p, limit.q)
  end,
}

-- Token bucket with lazy refill: the state is the tokens left (in ticks) and when they were counted.
algorithms['token-bucket'] = {
  used = function(limit, state, now)
    local tokens, counted, p, q, burst = struct.unpack('<ddddd', state)
    return convert(limit, burst * p - tokens - (now - counted) * q, p, q)
  end,
  state = function(limit, used, at)
    local tokens = limit.burst * limit.p - used
    return struct.pack('<ddddd', tokens, at, limit.p, limit.q, limit.burst)
  end,
}
