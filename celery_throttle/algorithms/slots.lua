-- slots.lua: concurrency: leases with a deadline. Each take is one slot, whatever its cost.
-- uses: clock, exact, tags
--
-- Library. Twin: `celery_throttle/algorithms/slots.py`. What is in use are the leases, a zset: holder ->
-- deadline (us). Its part of the state has the longest lease (us) of those: a deadline farther ahead was
-- written before the clock was set back. A limit of which one is taken needs `holder` and `lease` (us). It
-- sets `held`.

local function make_slots()
  local slots, FORM, SIZE = {}, '<BHd', 11

  -- The longest lease (us) there may be, see LONGEST_LEASE in limits.py: where the state does not say it.
  local LONGEST_LEASE = 3600000000

  -- Reads the last deadline.
  local function look(limit)
    limit.last = limit.last or tonumber(redis.call('ZRANGE', limit.entries, -1, -1, 'WITHSCORES')[2] or 0)
    return limit.last
  end

  function slots.read(limit, state, from, now)
    limit.held, limit.last, limit.longest_lease = false, false, LONGEST_LEASE
    if state and select(2, struct.unpack('<BH', state, from)) == SIZE then
      limit.longest_lease = select(3, struct.unpack(FORM, state, from))
    end
    return look(limit) <= now + limit.longest_lease + FARTHEST
  end

  function slots.is_of()
    return true
  end

  -- No lease lasts longer from now on than it did before the clock was set back.
  function slots.move_back(limit, state, from, now)
    if slots.read(limit, state, from, now) then
      return
    end
    limit.last = now + limit.longest_lease
    local deadline = whole(limit.last)
    for _, holder in ipairs(redis.call('ZRANGE', limit.entries, '(' .. deadline, '+inf', 'BYSCORE')) do
      redis.call('ZADD', limit.entries, deadline, holder)
    end
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

  -- Leases are written with the state: until then, another take is of the same slot.
  function slots.take(limit, now, at)
    limit.taken = at - now + limit.lease
  end

  local function last(limit, now)
    return math.max(0, look(limit) - now)
  end

  function slots.write(limit, now, given)
    local lease = limit.taken
    if lease then
      limit.longest_lease = held(limit, now) > 0 and math.max(limit.longest_lease, lease) or lease
      redis.call('ZREMRANGEBYSCORE', limit.entries, '-inf', whole(now))
      redis.call('ZADD', limit.entries, whole(now + lease), limit.holder)
      limit.taken, limit.held, limit.last = nil, false, math.max(look(limit), now + lease)
    end
    local lasts = last(limit, now)
    redis.call('PEXPIRE', limit.entries, expiry(lasts, given))
    return struct.pack(FORM, SLOTS, SIZE, limit.longest_lease), lasts
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
