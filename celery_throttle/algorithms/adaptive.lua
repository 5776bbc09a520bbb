-- adaptive.lua: a meter whose rate moves between two bounds, by what answers say: AIMD.
-- uses: clock, exact, tags
--
-- Library. Twin: `celery_throttle/algorithms/adaptive.py`, which explains the rule and its constants. Its part
-- of the state: tag, size, at (when it was written: the start of what was taken last), p, q, began (since
-- when there was always something in use), taken (ticks since then), level (ticks in use at `at`), share (the
-- rate, in millionths of its upper bound), fell, grew, refusals. Of a limit it sets `used`, the ticks in use
-- now, and all from `at` on save p and q.

local function make_adaptive()
  local adaptive, FORM, SIZE = {}, '<BHdddddddddd', 83
  local GROWTH, LONGEST_GROWTH, KEPT, KEPT_AGAIN, AGAIN = 100, 1000000, 93, 85, 2000000
  local REST, LONGEST_REST, MEMORY = 100000, 10000000, 3600000000
  local EXACT = 2 ^ 53

  -- Ticks that drain in some microseconds, rounded down; before the state was written, below 0.
  local function drained(us, rate)
    if us < 0 then
      return -select(3, exact())(-us, rate, MILLION)
    end
    local product = us * rate
    if product < EXACT then
      return (product - product % MILLION) / MILLION
    end
    return select(2, exact())(us, rate, MILLION)
  end

  -- Microseconds from now until so much has drained since the state was written.
  local function time_until(limit, ticks, now)
    local rate, us = limit.q * limit.share, 0
    if math.abs(ticks) * MILLION < EXACT then
      us = divided_up(ticks * MILLION, rate)
    elseif ticks < 0 then
      us = -select(2, exact())(-ticks, MILLION, rate)
    else
      us = select(3, exact())(ticks, MILLION, rate)
    end
    return math.max(0, limit.at + us - now)
  end

  local function used_at(limit, at)
    return math.max(0, limit.level - drained(at - limit.at, limit.q * limit.share))
  end

  -- Writes it as of a time.
  local function move(limit, at, now)
    local used = used_at(limit, at)
    if used_at(limit, now) == 0 then
      limit.began, limit.taken = now, 0
    end
    limit.at, limit.level = at, used
  end

  local function ticks_of(limit, cost)
    local _, _, scaled_up = exact()
    return scaled_up(cost, limit.p, MILLION)
  end

  local function unpack_state(limit, state, from)
    local _, _, at, p, q, began, taken, level, share, fell, grew, refusals = struct.unpack(FORM, state, from)
    limit.at, limit.began, limit.taken, limit.level = at, began, taken, level
    limit.share, limit.fell, limit.grew, limit.refusals = share, fell, grew, refusals
    return p == limit.p and q == limit.q
  end

  function adaptive.read(limit, state, from, now)
    limit.at, limit.began, limit.taken, limit.level = 0, 0, 0, 0
    limit.share, limit.fell, limit.grew, limit.refusals = MILLION, 0, 0, 0
    if state and not (unpack_state(limit, state, from) and limit.at <= now + FARTHEST) then
      return false
    end
    limit.used = used_at(limit, now)
    return true
  end

  function adaptive.check(limit, now)
    return time_until(limit, limit.level + ticks_of(limit, limit.cost) - limit.burst * limit.p, now)
  end

  function adaptive.take(limit, now, at)
    local ticks = ticks_of(limit, limit.cost)
    move(limit, at, now)
    limit.taken, limit.level = limit.taken + ticks, limit.level + ticks
    limit.used = used_at(limit, now)
  end

  function adaptive.write(limit, now)
    local lasts = time_until(limit, limit.level, now)
    if limit.share < MILLION then
      lasts = math.max(lasts, MEMORY)
    end
    return struct.pack(FORM, ADAPTIVE, SIZE, limit.at, limit.p, limit.q, limit.began, limit.taken, limit.level,
                       limit.share, limit.fell, limit.grew, limit.refusals), lasts
  end

  function adaptive.left(limit, now, exactly)
    local free = math.max(0, limit.burst * limit.p - limit.used)
    local rest = free % limit.p
    local amount = (free - rest) / limit.p * MILLION
    if exactly and rest > 0 then
      amount = amount + exact()(rest, MILLION, limit.p)
    end
    return amount, time_until(limit, limit.level, now)
  end

  function adaptive.is_of(limit, state, from)
    local _, _, _, p, q = struct.unpack(FORM, state, from)
    return p == limit.p and q == limit.q
  end

  function adaptive.move_back(limit, state, from, now)
    if not adaptive.read(limit, state, from, now) then
      limit.at, limit.began, limit.taken, limit.used = now, now, limit.level, limit.level
      limit.fell, limit.grew = math.min(limit.fell, now), math.min(limit.grew, now)
    end
  end

  function adaptive.in_use(state, from, at)
    local _, _, scaled_up = exact()
    local old = {}
    _, _, old.at, old.p, old.q, _, _, old.level, old.share = struct.unpack(FORM, state, from)
    return scaled_up(used_at(old, math.max(at, old.at - FARTHEST)), MILLION, old.p)
  end

  function adaptive.fill(limit, amount, at, now)
    local ticks = ticks_of(limit, amount)
    limit.at, limit.began, limit.taken, limit.level = at, at, ticks, ticks
    limit.used = used_at(limit, now)
  end

  function adaptive.mark(limit)
    return limit.taken, limit.began
  end

  function adaptive.settle(limit, mark, began, cost, actual, now)
    move(limit, now, now)
    if actual < cost then
      local after = limit.taken - (began == limit.began and mark or 0)
      local refund = math.min(ticks_of(limit, cost) - ticks_of(limit, actual), limit.level - after)
      limit.level = limit.level - math.max(0, refund)
    else
      local most = (MAX_EXACT - MAX_EXACT % 1000) / 1000
      local level = limit.level
      local owed = ticks_of(limit, math.min(actual - cost, (most - most % limit.p) / limit.p * MILLION))
      limit.level = math.min(level + owed, math.max(level, most))
      limit.taken = limit.taken + limit.level - level
    end
    limit.used = limit.level
    return true
  end

  local function fall(limit, now)
    local share = limit.share * (now - limit.fell < AGAIN and KEPT_AGAIN or KEPT)
    limit.share, limit.fell, limit.grew = math.max(number(limit, 1), (share - share % 100) / 100), now, now
  end

  -- An answer is known, so long (us) after the request. Returns whether anything has changed, and for how
  -- long (us) the limit should rest.
  function adaptive.answered(limit, now, took, refused)
    local latency, rest = number(limit, 2), 0
    if now - took < limit.fell then
      return false, 0
    end
    if refused then
      rest = math.min(REST * 2 ^ math.min(limit.refusals, 10), LONGEST_REST)
      move(limit, now, now)
      fall(limit, now)
      limit.refusals = limit.refusals + 1
    elseif latency > 0 and took > latency then
      move(limit, now, now)
      fall(limit, now)
    else
      local steps = math.floor(math.min(math.max(0, now - limit.grew), LONGEST_GROWTH) / GROWTH)
      if (limit.share == MILLION or steps == 0) and limit.refusals == 0 then
        return false, 0
      end
      move(limit, now, now)
      limit.share, limit.grew, limit.refusals = math.min(MILLION, limit.share + steps), now, 0
    end
    limit.used = limit.level
    return true, rest
  end

  return adaptive
end
