-- meters_extra.lua: what few decisions need of the algorithms of `meters.lua`.
-- uses: meters
--
-- Library.

-- How many refunds are told apart; beyond that the oldest count as one.
local REFUNDS = 16

local function make_meters()
  function meters.is_of(limit, state, from)
    local _, _, p, q = unpack_meter(state, from)
    return p == limit.p and q == limit.q
  end

  function meters.move_back(limit, state, from, now)
    if read_meter(limit, state, from, now) then
      return
    end
    -- With another beginning: nothing is refunded of what was taken before.
    local _, level = unpack_meter(state, from)
    limit.used, limit.began, limit.refunds = level, now, ''
  end

  function meters.in_use(state, from, now)
    local at, level, p, q = unpack_meter(state, from)
    local _, _, scaled_up = exact()
    return scaled_up(math.max(0, level - math.max(now - at, -FARTHEST) * q), MILLION, p)
  end

  function meters.fill(limit, amount, at, now)
    limit.used = math.max(0, ticks_of(limit, amount) - (now - at) * limit.q)
    limit.at, limit.began = now, at
  end

  function meters.delay(limit)
    return limit.tag == LEAKY_QUEUE and divided_up(limit.used, limit.q) or 0
  end

  -- What was refunded, as microseconds to drain: for each its take's end, how much; by the ends.
  local function unpack_refunds(limit)
    local found = { struct.unpack('<' .. string.rep('d', #limit.refunds / 8), limit.refunds) }
    table.remove(found) -- where it ended
    return found
  end

  -- The end of what was taken last: microseconds to drain from the beginning on, refunded or not.
  function meters.mark(limit, now)
    local finish, refunds = now - limit.began + math.floor(limit.used / limit.q), unpack_refunds(limit)
    for i = 2, #refunds, 2 do
      finish = finish + refunds[i]
    end
    return finish, limit.began
  end

  local function refund(limit, mark, began, amount, now)
    local refunds, place, finish = unpack_refunds(limit), 1, mark
    while place < #refunds and refunds[place] <= mark do
      finish, place = finish - refunds[place + 1], place + 2
    end
    local rest = began == limit.began and math.max(0, began + finish - now) * limit.q or 0
    amount = math.min(amount, rest, limit.used)
    limit.used = limit.used - amount
    if amount > 0 then
      table.insert(refunds, place, divided_up(amount, limit.q))
      table.insert(refunds, place, mark)
    end
    if #refunds > 2 * REFUNDS then
      refunds[2] = refunds[2] + refunds[4]
      table.remove(refunds, 3)
      table.remove(refunds, 3)
    end
    limit.refunds = struct.pack('<' .. string.rep('d', #refunds), unpack(refunds))
  end

  function meters.settle(limit, mark, began, cost, actual, now)
    if actual < cost then
      refund(limit, mark, began, ticks_of(limit, cost) - ticks_of(limit, actual), now)
    else
      local most = (MAX_EXACT - MAX_EXACT % limit.p) / limit.p * MILLION
      local used = limit.used
      limit.used = math.min(used + ticks_of(limit, math.min(actual - cost, most)), math.max(used, MAX_EXACT))
    end
    limit.at = now
    return true
  end

  -- How many times the cost fits, at once and with slots booked up to `ahead`; and the wait (us) of the
  -- first that is booked.
  function meters.times(limit, ahead)
    local step = ticks_of(limit, limit.cost)
    local free = limit.burst * limit.p - limit.used
    local at_once = math.floor(free / step)
    return at_once, math.floor((free + ahead * limit.q) / step),
           divided_up((at_once + 1) * step - free, limit.q)
  end

  return meters
end
