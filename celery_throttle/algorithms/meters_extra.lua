-- meters_extra.lua: the functions of meters that few decisions need.
-- The refunds of a limit, see `busy_period.lua`, are in microseconds to drain.

local refunded, add_refund = busy_period()

function meters.move_back(limit, state, from)
  if read_meter(limit, state, from) then
    return
  end
  -- With another beginning: takes before it can no longer be refunded.
  local _, level = unpack_meter(state, from)
  limit.used, limit.began, limit.refunds = level, now, ''
end

function meters.in_use(state, from, time)
  local at, level, p, q = unpack_meter(state, from)
  local _, scale_up = scaling()
  return scale_up(math.max(0, level - math.max(time - at, -FARTHEST) * q), MILLION, p)
end

function meters.fill(limit, amount, at)
  limit.used = math.max(0, ticks_of(limit, amount) - (now - at) * limit.q)
  limit.at, limit.began, limit.refunds = now, at, ''
end

-- Microseconds until what is taken next starts: only a leaky-queue delays.
function meters.delay(limit)
  return limit.tag == LEAKY_QUEUE and divide_up(limit.used, limit.q) or 0
end

-- The end of the last take: microseconds to drain from the beginning on, refunded or not.
function meters.mark(limit)
  return now - limit.began + math.floor(limit.used / limit.q) + refunded(limit.refunds, math.huge), limit.began
end

local function refund(limit, mark, began, cost, actual)
  local finish = mark - refunded(limit.refunds, mark)
  local rest = began == limit.began and math.max(0, began + finish - now) * limit.q or 0
  if limit.tag == LEAKY_QUEUE and limit.used - rest >= limit.q then
    rest = 0 -- takes after it have their starts already
  end
  local amount = math.min(cost - actual, rest, limit.used)
  limit.used = limit.used - amount
  local start = mark - divide_up(cost, limit.q)
  limit.refunds = add_refund(limit.refunds, start, mark, divide_up(amount, limit.q))
end

function meters.settle(limit, mark, began, cost, actual)
  if actual < cost then
    refund(limit, mark, began, ticks_of(limit, cost), ticks_of(limit, actual))
  else
    local most = (MAX_EXACT - MAX_EXACT % limit.p) / limit.p * MILLION
    local used = limit.used
    limit.used = math.min(used + ticks_of(limit, math.min(actual - cost, most)), math.max(used, MAX_EXACT))
  end
  limit.at = now
  return true
end

-- How many times the cost fits now, and how many times with starts booked up to `horizon` (us) ahead; and the wait
-- (us) of the first that is booked.
function meters.times(limit, horizon)
  local step = ticks_of(limit, limit.cost)
  local free = limit.burst * limit.p - limit.used
  local at_once = math.floor(free / step)
  return at_once, math.floor((free + horizon * limit.q) / step),
         divide_up((at_once + 1) * step - free, limit.q)
end

return meters
