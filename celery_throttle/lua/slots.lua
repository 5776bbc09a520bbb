-- slots.lua: concurrency: leases with a deadline. Each take is one slot, whatever its cost.
-- uses: exact
--
-- Library. Twin: `celery_throttle/reference/slots.py`. There is no state but the leases, a zset:
-- holder -> deadline (us). A ref that takes one needs `holder` and `lease` (us). It sets `held`.

local function make_slots()
  local family = {}

  function family.empty(ref)
    ref.held = false
  end

  local function held(ref, now)
    ref.held = ref.held or redis.call('ZCOUNT', ref.entries, '(' .. whole(now), '+inf')
    return ref.held
  end

  function family.wait(ref, _, now)
    local over = held(ref, now) - ref.limit.burst
    if over < 0 then
      return 0
    end
    local row = redis.call('ZRANGE', ref.entries, '(' .. whole(now), '+inf', 'BYSCORE',
                           'LIMIT', over, 1, 'WITHSCORES')
    return tonumber(row[2]) - now
  end

  function family.take(ref, _, now, at)
    ref.held, ref.at = held(ref, now) + 1, at
  end

  function family.write(ref, now, given)
    redis.call('ZREMRANGEBYSCORE', ref.entries, '-inf', whole(now))
    redis.call('ZADD', ref.entries, whole(ref.at + ref.lease), ref.holder)
    local last = redis.call('ZRANGE', ref.entries, -1, -1, 'WITHSCORES')[2]
    redis.call('PEXPIRE', ref.entries, expiry(tonumber(last) - now, given))
  end

  function family.left(ref, now)
    local free = math.max(0, ref.limit.burst - held(ref, now)) * MILLION
    local last = redis.call('ZRANGE', ref.entries, -1, -1, 'WITHSCORES')[2]
    return free, last and math.max(0, tonumber(last) - now) or 0
  end

  function family.mark()
    return 0
  end

  function family.settle()
    return false
  end

  return family
end
