-- meters.lua: algorithms that drain: GCRA, token bucket and leaky bucket, one rule in three forms.
-- uses: exact
--
-- Library. Twin: `celery_throttle/reference/meters.py`, which explains the rules. An emission interval
-- of p/q microseconds a unit makes a unit p ticks, and a microsecond q. Of a ref it sets
--   at       when the state was written: the start of what was taken last
--   level    ticks in use then

-- What each form writes after the tag: since, at, p, q; and of its own:
local FORMS = {
  g = '<Bdddddd',  -- the theoretical arrival time: microseconds, ticks
  t = '<Bdddddd',  -- tokens left (ticks), burst (units)
  l = '<Bddddd',   -- level (ticks)
  q = '<Bddddd',   -- level (ticks)
}

local function make_meters()
  local family = {}

  local function used_at(ref, now)
    return math.max(0, ref.level - (now - ref.at) * ref.limit.q)
  end

  local function ticks_of(limit, cost)
    local units = cost / MILLION
    if units % 1 == 0 then
      return units * limit.p
    end
    return scaled_up(cost, limit.p, MILLION)
  end

  function family.empty(ref)
    ref.at, ref.level = 0, 0
  end

  local function unpack_level(kind, state)
    local _, _, at, p, q, first, second = struct.unpack(FORMS[kind], state)
    if kind == 'g' then
      return at, (first - at) * q + second, p, q
    elseif kind == 't' then
      return at, second * p - first, p, q
    end
    return at, first, p, q
  end

  function family.read(ref, state)
    local p, q
    ref.at, ref.level, p, q = unpack_level(ref.limit.kind, state)
    return p == ref.limit.p and q == ref.limit.q
  end

  function family.written(ref)
    return ref.at
  end

  function family.move_back(ref, now)
    ref.at = now
  end

  function family.in_use(kind, state, now)
    local at, level, p, q = unpack_level(kind, state)
    return scaled_up(math.max(0, level - (now - at) * q), MILLION, p)
  end

  -- A task in a line starts when all before it have leaked; a caller outside tasks is given a delay.
  function family.wait(ref, cost, now, lined)
    local limit = ref.limit
    local used = used_at(ref, now)
    if lined and limit.kind == 'q' then
      return divided_up(used, limit.q)
    end
    -- In this order no sum leaves what a double holds exactly.
    local over = used - limit.burst * limit.p + ticks_of(limit, cost)
    local wait = over > 0 and divided_up(over, limit.q) or 0
    if limit.kind == 'q' and ref.longest then
      wait = math.max(wait, divided_up(used, limit.q) - ref.longest)
    end
    return wait
  end

  function family.delay(ref, now)
    return ref.limit.kind == 'q' and divided_up(used_at(ref, now), ref.limit.q) or 0
  end

  function family.take(ref, cost, now, at)
    ref.level = used_at(ref, math.max(at, now)) + ticks_of(ref.limit, cost)
    ref.at = at
  end

  function family.write(ref, now, given)
    local limit, at, level = ref.limit, ref.at, ref.level
    local kind = limit.kind
    local ticks = level % limit.q
    local lasts = at - now + (level - ticks) / limit.q + 1
    local first, second = level, nil
    if kind == 'g' then
      first, second = at + (level - ticks) / limit.q, ticks
    elseif kind == 't' then
      first, second = limit.burst * limit.p - level, limit.burst
    end
    redis.call('SET', ref.state, struct.pack(FORMS[kind], limit.tag, limit.since, at, limit.p,
                                             limit.q, first, second), 'PX', expiry(lasts, given))
  end

  function family.left(ref, now, exact)
    local limit = ref.limit
    local used = used_at(ref, now)
    local free = math.max(0, limit.burst * limit.p - used)
    local rest = free % limit.p
    local amount = (free - rest) / limit.p * MILLION
    if exact then
      amount = amount + scaled(rest, MILLION, limit.p)
    end
    return amount, divided_up(used, limit.q)
  end

  -- When what was taken last will have drained.
  function family.mark(ref)
    return ref.at + math.floor(ref.level / ref.limit.q)
  end

  -- Whether there is something to write.
  function family.settle(ref, mark, cost, actual, now)
    local limit, used = ref.limit, used_at(ref, now)
    local change = ticks_of(limit, actual) - ticks_of(limit, cost)
    if change < 0 then
      change = -math.min(-change, math.max(0, mark - now) * limit.q, used)
    end
    ref.at, ref.level = now, math.min(used + change, math.max(used, MAX_EXACT))
    return true
  end

  -- How many times `cost` fits, at once and with slots booked up to `ahead`; and the wait (us) of the
  -- first that is booked.
  function family.times(ref, cost, now, ahead)
    local limit, step = ref.limit, ticks_of(ref.limit, cost)
    local free = limit.burst * limit.p - used_at(ref, now)
    local at_once = math.floor(free / step)
    return at_once, math.floor((free + ahead * limit.q) / step),
           divided_up((at_once + 1) * step - free, limit.q)
  end

  return family
end
