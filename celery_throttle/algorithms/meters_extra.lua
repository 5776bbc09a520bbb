-- meters_extra.lua: the functions of meters that few decisions need.
-- The refunds of a limit are pairs of numbers, sorted by the first: the end of the take that was refunded, see
-- `meters.mark`, and the refund as microseconds to drain.

-- How many refunds are kept. Beyond that the two oldest become one.
local MAX_REFUNDS = 16

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

local function unpack_refunds(limit)
  local found = { struct.unpack('<' .. string.rep('d', #limit.refunds / 8), limit.refunds) }
  table.remove(found) -- the position where the reading ended
  return found
end

-- The end of the last take: microseconds to drain from the beginning on, refunded or not.
function meters.mark(limit)
  local finish, refunds = now - limit.began + math.floor(limit.used / limit.q), unpack_refunds(limit)
  for i = 2, #refunds, 2 do
    finish = finish + refunds[i]
  end
  return finish, limit.began
end

local function refund(limit, mark, began, amount)
  local refunds, position, finish = unpack_refunds(limit), 1, mark
  while position < #refunds and refunds[position] <= mark do
    finish, position = finish - refunds[position + 1], position + 2
  end
  local rest = began == limit.began and math.max(0, began + finish - now) * limit.q or 0
  amount = math.min(amount, rest, limit.used)
  limit.used = limit.used - amount
  if amount > 0 then
    table.insert(refunds, position, divide_up(amount, limit.q))
    table.insert(refunds, position, mark)
  end
  if #refunds > 2 * MAX_REFUNDS then
    refunds[2] = refunds[2] + refunds[4]
    table.remove(refunds, 3)
    table.remove(refunds, 3)
  end
  limit.refunds = struct.pack('<' .. string.rep('d', #refunds), unpack(refunds))
end

function meters.settle(limit, mark, began, cost, actual)
  if actual < cost then
    refund(limit, mark, began, ticks_of(limit, cost) - ticks_of(limit, actual))
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
