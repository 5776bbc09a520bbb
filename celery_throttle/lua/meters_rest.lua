-- meters_rest.lua: what few decisions need of the algorithms of `meters.lua`.
-- uses: meters
--
-- Library.

local function make_meters()
  function meters.is_of(limit, state, from)
    local _, _, p, q = unpack_meter(state, from)
    return p == limit.p and q == limit.q
  end

  function meters.move_back(limit, state, from, now)
    local at, level, _, _, refunded = unpack_meter(state, from)
    limit.used, limit.at, limit.refunded = math.max(0, level - (now - at) * limit.q), now, refunded
    if at > now + FARTHEST then
      -- What was taken before drains as much earlier by this clock.
      limit.used, limit.refunded = level, refunded + at - now
    end
  end

  function meters.in_use(state, from, now)
    local at, level, p, q = unpack_meter(state, from)
    local _, _, scaled_up = exact()
    return scaled_up(math.max(0, level - (now - at) * q), MILLION, p)
  end

  function meters.fill(limit, amount, at, now)
    limit.used = math.max(0, ticks_of(limit, amount) - (now - at) * limit.q)
    limit.at = now
  end

  function meters.delay(limit)
    return limit.tag == LEAKY_QUEUE and divided_up(limit.used, limit.q) or 0
  end

  -- When what was taken last will have drained, if nothing is refunded; and what was until now.
  function meters.mark(limit, now)
    return now + math.floor(limit.used / limit.q), limit.refunded
  end

  function meters.settle(limit, mark, refunded, cost, actual, now)
    local used, change = limit.used, ticks_of(limit, actual) - ticks_of(limit, cost)
    if change < 0 then
      local since = limit.refunded - refunded
      local rest = since < 0 and 0 or math.max(0, mark - since - now) * limit.q
      change = -math.min(-change, rest, used)
      limit.refunded = limit.refunded + divided_up(-change, limit.q)
    end
    limit.at, limit.used = now, math.min(used + change, math.max(used, MAX_EXACT))
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
