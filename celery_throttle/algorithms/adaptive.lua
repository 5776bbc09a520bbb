-- adaptive.lua: a meter whose rate adapts to the answers of an API: AIMD, additive increase, multiplicative decrease.
-- Twin: `adaptive.py`, which explains the rule and its constants. Its part of the state: tag, size, and
--   at         when (us) it was written: the start of the last take
--   p, q       as in `meters.lua`, of the upper bound of the rate
--   began      since when (us) there was always something in use
--   taken      ticks taken since then
--   level      ticks in use at `at`
--   share      the rate, in millionths of its upper bound
--   fell, grew when (us) the rate fell, and until when (us) good answers were counted
--   refusals   since the last good answer
-- Adds them to a limit, and `used`: the ticks in use now.

local ADAPTIVE_FORM, ADAPTIVE_SIZE = '<BHdddddddddd', 83
local algorithm = {}
local GROWTH, LONGEST_GROWTH, KEPT, KEPT_AGAIN, AGAIN = 100, 1000000, 93, 85, 2000000
local REST, LONGEST_REST, MEMORY = 100000, 10000000, 3600000000
local scale_down, scale_up = scaling()

-- Ticks that drain in some microseconds, rounded down. Negative for a time before the state was written.
local function drained(us, rate)
  return us < 0 and -scale_up(-us, rate, MILLION) or (scale_down(us, rate, MILLION))
end

-- Microseconds from now until some ticks have drained since the state was written.
local function time_until(limit, ticks)
  local rate = limit.q * limit.share
  local us = ticks < 0 and -scale_down(-ticks, MILLION, rate) or scale_up(ticks, MILLION, rate)
  return math.max(0, limit.at + us - now)
end

local function used_at(limit, at)
  return math.max(0, limit.level - drained(at - limit.at, limit.q * limit.share))
end

-- Rewrite the limit as of a time.
local function move(limit, at)
  local used = used_at(limit, at)
  if used_at(limit, now) == 0 then
    limit.began, limit.taken = now, 0
  end
  limit.at, limit.level = at, used
end

local function ticks_for(limit, amount)
  return scale_up(amount, limit.p, MILLION)
end

local function unpack_state(limit, state, from)
  local _, _, at, p, q, began, taken, level, share, fell, grew, refusals = struct.unpack(ADAPTIVE_FORM, state, from)
  limit.at, limit.began, limit.taken, limit.level = at, began, taken, level
  limit.share, limit.fell, limit.grew, limit.refusals = share, fell, grew, refusals
  return p == limit.p and q == limit.q
end

function algorithm.read(limit, state, from)
  limit.at, limit.began, limit.taken, limit.level = 0, 0, 0, 0
  limit.share, limit.fell, limit.grew, limit.refusals = MILLION, 0, 0, 0
  local is_same = not state or unpack_state(limit, state, from)
  if not is_same or limit.at > now + FARTHEST then
    return false, is_same
  end
  limit.used = used_at(limit, now)
  return true, true
end

function algorithm.check(limit)
  return time_until(limit, limit.level + ticks_for(limit, limit.cost) - limit.burst * limit.p)
end

function algorithm.take(limit, at)
  local ticks = ticks_for(limit, limit.cost)
  move(limit, at)
  limit.taken, limit.level = limit.taken + ticks, limit.level + ticks
  limit.used = used_at(limit, now)
end

function algorithm.write(limit)
  local lasts = time_until(limit, limit.level)
  if limit.share < MILLION then
    lasts = math.max(lasts, MEMORY)
  end
  return struct.pack(ADAPTIVE_FORM, ADAPTIVE, ADAPTIVE_SIZE, limit.at, limit.p, limit.q, limit.began, limit.taken, limit.level,
                     limit.share, limit.fell, limit.grew, limit.refusals), lasts
end

function algorithm.remaining(limit, fractional)
  local free = math.max(0, limit.burst * limit.p - limit.used)
  local rest = free % limit.p
  local amount = (free - rest) / limit.p * MILLION
  if fractional and rest > 0 then
    amount = amount + (scale_down(rest, MILLION, limit.p))
  end
  return amount, time_until(limit, limit.level)
end

function algorithm.move_back(limit, state, from)
  if not algorithm.read(limit, state, from) then
    limit.at, limit.began, limit.taken, limit.used = now, now, limit.level, limit.level
    limit.fell, limit.grew = math.min(limit.fell, now), math.min(limit.grew, now)
  end
end

function algorithm.in_use(state, from, at)
  local _, _, written, p, q, _, _, level, share = struct.unpack(ADAPTIVE_FORM, state, from)
  local old = { at = written, q = q, level = level, share = share }
  return scale_up(used_at(old, math.max(at, written - FARTHEST)), MILLION, p)
end

function algorithm.fill(limit, amount, at)
  local ticks = ticks_for(limit, amount)
  limit.at, limit.began, limit.taken, limit.level = at, at, ticks, ticks
  limit.used = used_at(limit, now)
end

function algorithm.mark(limit)
  return limit.taken, limit.began
end

function algorithm.settle(limit, mark, began, cost, actual)
  move(limit, now)
  if actual < cost then
    local after = limit.taken - (began == limit.began and mark or 0)
    local refund = math.min(ticks_for(limit, cost) - ticks_for(limit, actual), limit.level - after)
    limit.level = limit.level - math.max(0, refund)
  else
    local most = (MAX_EXACT - MAX_EXACT % 1000) / 1000
    local level = limit.level
    local owed = ticks_for(limit, math.min(actual - cost, (most - most % limit.p) / limit.p * MILLION))
    limit.level = math.min(level + owed, math.max(level, most))
    limit.taken = limit.taken + limit.level - level
  end
  limit.used = limit.level
  return true
end

local function fall(limit)
  local share = limit.share * (now - limit.fell < AGAIN and KEPT_AGAIN or KEPT)
  limit.share, limit.fell, limit.grew = math.max(parameter(limit, 1), (share - share % 100) / 100), now, now
end

-- Learn from an answer that came `took` (us) after its request. Returns whether the limit has changed, and for how
-- long (us) it should stop.
function algorithm.learn(limit, took, refused)
  local latency, rest = parameter(limit, 2), 0
  if now - took < limit.fell then
    return false, 0
  end
  if refused then
    rest = math.min(REST * 2 ^ math.min(limit.refusals, 10), LONGEST_REST)
    move(limit, now)
    fall(limit)
    limit.refusals = limit.refusals + 1
  elseif latency > 0 and took > latency then
    move(limit, now)
    fall(limit)
  else
    local steps = math.floor(math.min(math.max(0, now - limit.grew), LONGEST_GROWTH) / GROWTH)
    if (limit.share == MILLION or steps == 0) and limit.refusals == 0 then
      return false, 0
    end
    move(limit, now)
    limit.share, limit.grew, limit.refusals = math.min(MILLION, limit.share + steps), now, 0
  end
  limit.used = limit.level
  return true, rest
end

return algorithm
