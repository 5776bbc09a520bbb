-- adaptive.lua: a meter whose rate adapts to the answers of an API: AIMD, additive increase, multiplicative decrease.
-- Twin: `adaptive.py`, which explains the rule and its constants. Its part of the state: tag, size, and
--   at         when (us) it was written: the start of the last take
--   p, q       as in `meters.lua`, of the upper bound of the rate
--   began      since when (us) there was always something in use
--   taken      ticks taken since then
--   level      ticks in use at `at`
--   share      the rate, in millionths of its upper bound
--   fell, grew when (us) the rate fell or `ceiling` changed, and until when (us) good answers were counted
--   ceiling    the limit of the API, as it told, in millionths of the upper bound
-- Then the refunds, see `busy_period.lua`, in ticks. Adds them to a limit, and `used`: the ticks in use now.

local ADAPTIVE_FORM, ADAPTIVE_SIZE = '<BHdddddddddd', 83
local algorithm = {}
local ACCELERATION, LONGEST_ACCELERATION, LONGEST_GROWTH = 1500000, 30000000, 1000000
local KEPT, KEPT_AGAIN, AGAIN, MEMORY = 93, 85, 2000000, 3600000000
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
    limit.began, limit.taken, limit.refunds = now, 0, ''
  end
  limit.at, limit.level = at, used
end

local function ticks_for(limit, amount)
  return scale_up(amount, limit.p, MILLION)
end

local function unpack_state(limit, state, from)
  local _, size, at, p, q, began, taken, level, share, fell, grew, ceiling = struct.unpack(ADAPTIVE_FORM, state, from)
  limit.at, limit.began, limit.taken, limit.level = at, began, taken, level
  limit.share, limit.fell, limit.grew, limit.ceiling = share, fell, grew, ceiling
  limit.refunds = string.sub(state, from + ADAPTIVE_SIZE, from + size - 1)
  return p == limit.p and q == limit.q
end

function algorithm.read(limit, state, from)
  limit.at, limit.began, limit.taken, limit.level, limit.refunds = 0, 0, 0, 0, ''
  limit.share, limit.fell, limit.grew, limit.ceiling = MILLION, 0, 0, MILLION
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
  local packed = struct.pack(ADAPTIVE_FORM, ADAPTIVE, ADAPTIVE_SIZE + #limit.refunds, limit.at, limit.p, limit.q,
                             limit.began, limit.taken, limit.level, limit.share, limit.fell, limit.grew, limit.ceiling)
  return packed .. limit.refunds, lasts
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
    limit.at, limit.began, limit.taken, limit.used, limit.refunds = now, now, limit.level, limit.level, ''
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
  limit.at, limit.began, limit.taken, limit.level, limit.refunds = at, at, ticks, ticks, ''
  limit.used = used_at(limit, now)
end

function algorithm.mark(limit)
  return limit.taken, limit.began
end

local function refund(limit, mark, began, cost, actual)
  if began ~= limit.began then
    return
  end
  local refunded, add_refund = busy_period()
  local before = refunded(limit.refunds, mark)
  local later = limit.taken - mark - (refunded(limit.refunds, math.huge) - before)
  local amount = math.max(0, math.min(cost - actual, limit.level - later))
  limit.level = limit.level - amount
  limit.refunds = add_refund(limit.refunds, mark - cost, mark, amount)
end

function algorithm.settle(limit, mark, began, cost, actual)
  move(limit, now)
  if actual < cost then
    refund(limit, mark, began, ticks_for(limit, cost), ticks_for(limit, actual))
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

local function grow(limit)
  local good = math.min(math.max(0, now - limit.grew), LONGEST_GROWTH)
  local since = math.min(math.max(0, limit.grew - limit.fell), LONGEST_ACCELERATION)
  local growth = math.floor(limit.share * good / MILLION) * (ACCELERATION + since)
  local share = math.min(limit.ceiling, limit.share + math.floor(growth / (100 * ACCELERATION)))
  if share == limit.share then
    return false
  end
  move(limit, now)
  limit.share, limit.grew = share, now
  return true
end

-- The API's own limit, as it told: its units, and the period (us; 0 for that of the limit). Within the range, in
-- millionths of the upper bound.
local function told_ceiling(limit, units, period)
  local count, own = parameter(limit, 3), parameter(limit, 4)
  local share = units * MILLION / count * (own / (period > 0 and period or own))
  return math.min(MILLION, math.max(parameter(limit, 1), math.floor(math.min(share, MILLION))))
end

-- As if the rate had been a share of its upper bound since there are units in use.
local function drain_again(limit, share)
  local refunded = busy_period()
  local used = limit.taken - refunded(limit.refunds, math.huge) - drained(now - limit.began, limit.q * share)
  limit.level = math.max(limit.level, math.min(used, 2 * limit.burst * limit.p))
end

-- Learn from an answer, see `learn.lua`. Returns whether the limit has changed.
function algorithm.learn(limit, answer)
  local latency, took = parameter(limit, 2), answer.took
  local ceiling = answer.quota >= 0 and told_ceiling(limit, answer.quota, answer.period) or limit.ceiling
  if now - took < limit.fell then
    return false
  end
  if ceiling ~= limit.ceiling then
    move(limit, now)
    if limit.fell == 0 then
      drain_again(limit, ceiling)
    end
    limit.share, limit.ceiling, limit.fell, limit.grew = ceiling, ceiling, now, now
  elseif answer.kind == 'overloaded' then
    return false
  elseif answer.kind == 'refused' or (latency > 0 and took > latency) then
    move(limit, now)
    fall(limit)
  elseif not grow(limit) then
    return false
  end
  limit.used = limit.level
  return true
end

return algorithm
