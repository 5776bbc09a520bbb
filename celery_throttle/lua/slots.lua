-- slots.lua: concurrency: leases with a deadline. Each take is one slot, whatever its cost.
-- uses: clock, exact, tags
--
-- Library. Twin: `celery_throttle/reference/slots.py`. What is in use are the leases, a zset: holder ->
-- deadline (us); its part of the state says nothing more. A limit of which one is taken needs `holder`
-- and `lease` (us). It sets `held`.

local function make_slots()
  local slots = {}

  function slots.read(limit)
    limit.held = false
    return true
  end

  function slots.is_of()
    return true
  end

  function slots.move_back(limit)
    limit.held = false
  end

  local function held(limit, now)
    limit.held = limit.held or redis.call('ZCOUNT', limit.entries, '(' .. whole(now), '+inf')
    return limit.held
  end

  function slots.check(limit, now)
    local over = held(limit, now) - limit.burst
    if over < 0 then
      return 0, 0
    end
    local row = redis.call('ZRANGE', limit.entries, '(' .. whole(now), '+inf', 'BYSCORE',
                           'LIMIT', over, 1, 'WITHSCORES')
    return tonumber(row[2]) - now
  end

  function slots.take(limit, now, at)
    redis.call('ZREMRANGEBYSCORE', limit.entries, '-inf', whole(now))
    redis.call('ZADD', limit.entries, whole(at + limit.lease), limit.holder)
    limit.held = false
  end

  local function last(limit, now)
    local till = redis.call('ZRANGE', limit.entries, -1, -1, 'WITHSCORES')[2]
    return till and math.max(0, tonumber(till) - now) or 0
  end

  function slots.write(limit, now, given)
    local lasts = last(limit, now)
    redis.call('PEXPIRE', limit.entries, expiry(lasts, given))
    return struct.pack('<BH', SLOTS, 3), lasts
  end

  function slots.left(limit, now)
    return math.max(0, limit.burst - held(limit, now)) * MILLION, last(limit, now)
  end

  function slots.mark()
    return 0, 0
  end

  function slots.settle()
    return false
  end

  return slots
end
