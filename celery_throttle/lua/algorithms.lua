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
--                               then these p and q

local algorithms = {}

-- GCRA (ITU-T I.371, the virtual scheduling form): the state is the theoretical arrival time.
algorithms['gcra'] = {
  tag = 'g',
  pack = function(limit, used, at)
    local ticks = used % limit.q
    return struct.pack('<dddd', at + (used - ticks) / limit.q, ticks, limit.p, limit.q)
  end,
  used = function(body, at)
    local tat, ticks, p, q = struct.unpack('<dddd', body)
    return (tat - at) * q + ticks, p, q
  end,
}

-- Token bucket with lazy refill: the state is the tokens left (in ticks) and when they were counted.
algorithms['token-bucket'] = {
  tag = 't',
  pack = function(limit, used, at)
    return struct.pack('<ddddd', limit.burst * limit.p - used, at, limit.burst, limit.p, limit.q)
  end,
  used = function(body, at)
    local tokens, counted, burst, p, q = struct.unpack('<ddddd', body)
    return burst * p - tokens - (at - counted) * q, p, q
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

local function clip(limit, used)
  return math.max(0, math.min(used, limit.burst * limit.p + FARTHEST * limit.q))
end

local function pack_state(limit, used, at)
  return limit.algorithm.tag .. limit.algorithm.pack(limit, used, at)
end

-- Since when (us) a limit is in force; p, q and since of the definition before it.
local function history(limit)
  local since, old_p, old_q, old_since = string.match(limit.before, '^(%S+) (%S+) (%S+) (%S+)$')
  return tonumber(since), tonumber(old_p), tonumber(old_q), tonumber(old_since)
end

-- Ticks in use at `now`. A state that was packed under another rate keeps its units, not its time:
-- one unit used under "1/h" holds back one unit, not one hour, when the limit becomes "100/s". Its
-- units are paid off at the old rate until the limit changed, and at the new one from then on. If
-- the limit changed more than once since, nothing counts as paid off between these changes: too
-- little may be admitted, never too much.
local function used_at(limit, state, now)
  local algorithm, body = by_tag[string.sub(state, 1, 1)], string.sub(state, 2)
  local used, p, q = algorithm.used(body, now)
  if p == limit.p and q == limit.q then
    return clip(limit, used)
  end
  local since, old_p, old_q, old_since = history(limit)
  local paid_until = (p == old_p and q == old_q) and since or old_since
  used = algorithm.used(body, math.min(paid_until, now))
  used = clip(limit, math.ceil(math.max(0, used) / p * limit.p))
  return math.max(0, used - math.max(0, now - since) * limit.q)
end
