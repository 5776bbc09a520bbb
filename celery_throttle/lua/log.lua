-- log.lua: the sliding log: every admission of one period is remembered.
-- uses: exact
--
-- Library. Twin: `celery_throttle/reference/log.py`. The admissions are a zset, so what a decision
-- costs does not grow with their number: 'number:cost' -> time. The state is tag, since, period, sum
-- of their costs, number of the last, time of the last. Of a ref this sets
--   total, number, last    as in the state
--   added                  {time, number, cost} of admissions that are not in the zset yet
--   fresh                  whether the zset is of another definition, and does not count

local function make_sliding_log()
  local family, FORM = {}, '<Bddddd'

  function family.empty(ref)
    ref.total, ref.number, ref.last, ref.added, ref.fresh = 0, 0, 0, {}, true
  end

  function family.read(ref, state)
    local _, period
    family.empty(ref)
    _, _, period, ref.total, ref.number, ref.last = struct.unpack(FORM, state)
    ref.fresh = period ~= ref.limit.number(1)
    return not ref.fresh
  end

  function family.written(ref)
    return ref.last
  end

  local function cost_of(member)
    return tonumber(string.sub(member, string.find(member, ':', 1, true) + 1))
  end

  -- Sum of the costs of the admissions that no longer count at `now`.
  local function gone(ref, now)
    local till, amount = now - ref.limit.number(1), 0
    if not ref.fresh then
      for _, member in ipairs(redis.call('ZRANGE', ref.entries, '-inf', whole(till), 'BYSCORE')) do
        amount = amount + cost_of(member)
      end
    end
    for _, entry in ipairs(ref.added) do
      amount = amount + (entry[1] <= till and entry[3] or 0)
    end
    return amount
  end

  function family.move_back(ref, now)
    local total = ref.total - gone(ref, ref.last)
    family.add(ref, now, total, true)
  end

  function family.add(ref, time, cost, alone)
    if alone then
      ref.added, ref.fresh, ref.total = {}, true, 0
    end
    ref.number, ref.last, ref.total = ref.number + 1, time, ref.total + cost
    ref.added[#ref.added + 1] = { time, ref.number, cost }
  end

  function family.in_use(_, state, at)
    local _, _, period, total, _, last = struct.unpack(FORM, state)
    return at < last + period and total or 0
  end

  -- Goes through the admissions that count, the oldest first, until so much has been seen: gives the
  -- time of the last one.
  local function time_of(ref, amount, now)
    local from, seen, size = '(' .. whole(now - ref.limit.number(1)), 0, 8
    local offset = 0
    while not ref.fresh do
      local rows = redis.call('ZRANGE', ref.entries, from, '+inf', 'BYSCORE', 'LIMIT', offset, size,
                              'WITHSCORES')
      for i = 1, #rows, 2 do
        seen = seen + cost_of(rows[i])
        if seen >= amount then
          return tonumber(rows[i + 1])
        end
      end
      if #rows < 2 * size then
        break
      end
      offset, size = offset + size, 128
    end
    return ref.last
  end

  function family.wait(ref, cost, now)
    local over = ref.total - gone(ref, now) + cost - ref.limit.burst * MILLION
    return over > 0 and time_of(ref, over, now) + ref.limit.number(1) - now or 0
  end

  function family.take(ref, cost, now, at)
    family.add(ref, math.max(at, ref.last), cost)
  end

  function family.write(ref, now, given)
    local limit, period = ref.limit, ref.limit.number(1)
    local lasts = expiry(ref.last + period - now, given)
    local rest = ref.total - gone(ref, now)
    if ref.fresh then
      redis.call('DEL', ref.entries)
    else
      redis.call('ZREMRANGEBYSCORE', ref.entries, '-inf', whole(now - period))
    end
    for _, entry in ipairs(ref.added) do
      if entry[1] > now - period then
        redis.call('ZADD', ref.entries, whole(entry[1]), whole(entry[2]) .. ':' .. whole(entry[3]))
      end
    end
    ref.total, ref.added, ref.fresh = rest, {}, false
    redis.call('PEXPIRE', ref.entries, lasts)
    redis.call('SET', ref.state, struct.pack(FORM, limit.tag, limit.since, period, rest, ref.number,
                                             ref.last), 'PX', lasts)
  end

  function family.left(ref, now)
    local used = ref.total - gone(ref, now)
    local reset = used > 0 and ref.last + ref.limit.number(1) - now or 0
    return math.max(0, ref.limit.burst * MILLION - used), reset
  end

  function family.mark(ref)
    return ref.number
  end

  function family.settle(ref, mark, cost, actual, now)
    local member = whole(mark) .. ':' .. whole(cost)
    local time = not ref.fresh and tonumber(redis.call('ZSCORE', ref.entries, member) or 0) or 0
    if time > now - ref.limit.number(1) then
      redis.call('ZREM', ref.entries, member)
      ref.total = ref.total + actual - cost
      if actual > 0 then
        redis.call('ZADD', ref.entries, whole(time), whole(mark) .. ':' .. whole(actual))
      end
    elseif actual > cost then
      family.take(ref, actual - cost, now, now)
    else
      return false
    end
    return true
  end

  return family
end
