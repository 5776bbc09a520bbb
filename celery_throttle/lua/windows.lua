-- windows.lua: algorithms that count in windows.
-- uses: exact
--
-- Library. Twin: `celery_throttle/reference/windows.py`, which explains the rules.

-- Of a ref it sets `start`, `stop` and `count`. State: tag, since, start, stop, count.
local function make_fixed_window()
  local family, FORM = {}, '<Bdddd'

  -- Where windows begin: numbers of the definition after burst, p and q. {period, 1 if from the first
  -- request}, or {0, moments at which windows of a calendar begin}.
  local function window_of(limit, at)
    local period = limit.number(1)
    if period > 0 then
      local start = limit.number(2) == 1 and at or at - at % period
      return start, start + period
    end
    local low, high = 2, limit.numbers
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if limit.number(middle) <= at then
        low = middle
      else
        high = middle
      end
    end
    return limit.number(low), limit.number(high)
  end

  -- Whether the windows that are known reach from now on as far as a slot may be booked.
  function family.is_stale(limit, now)
    return limit.number(1) == 0
        and (now < limit.number(2) or now + FARTHEST >= limit.number(limit.numbers))
  end

  function family.empty(ref)
    ref.start, ref.stop, ref.count = 0, 0, 0
  end

  function family.read(ref, state)
    local _
    _, _, ref.start, ref.stop, ref.count = struct.unpack(FORM, state)
    return true
  end

  function family.written(ref)
    return ref.start
  end

  function family.move_back(ref, now)
    ref.start, ref.stop = window_of(ref.limit, now)
  end

  function family.in_use(_, state, at)
    local _, _, _, stop, count = struct.unpack(FORM, state)
    return at < stop and count or 0
  end

  function family.wait(ref, cost, now)
    if now >= ref.stop then
      return 0
    elseif ref.count + cost <= ref.limit.burst * MILLION then
      return math.max(0, ref.start - now)
    end
    return ref.stop - now
  end

  function family.take(ref, cost, _, at)
    if at >= ref.stop then
      ref.start, ref.stop = window_of(ref.limit, at)
      ref.count = 0
    end
    ref.count = ref.count + cost
  end

  function family.write(ref, now, given)
    redis.call('SET', ref.state, struct.pack(FORM, ref.limit.tag, ref.limit.since, ref.start,
                                             ref.stop, ref.count), 'PX', expiry(ref.stop - now, given))
  end

  function family.left(ref, now)
    if now >= ref.stop then
      return ref.limit.burst * MILLION, 0
    end
    local free = now >= ref.start and math.max(0, ref.limit.burst * MILLION - ref.count) or 0
    return free, ref.count > 0 and ref.stop - now or 0
  end

  function family.mark(ref)
    return ref.start
  end

  function family.settle(ref, mark, cost, actual, now)
    local change = actual - cost
    if now < ref.stop and (mark == ref.start or change > 0) then
      ref.count = math.max(0, ref.count + change)
    elseif change > 0 then
      family.take(ref, change, now, now)
    else
      return false
    end
    return true
  end

  -- What is taken now must not start in the window after it.
  function family.good_for(ref, now)
    return ref.stop - now
  end

  return family
end

-- Of a ref it sets `start` (of the current part) and `counts`, that of the current part first.
-- State: tag, since, start, part (us), then the counts.
local function make_sliding_window()
  local family, HEAD = {}, '<Bddd'
  local FIRST = 26

  local function part_of(limit)
    return limit.number(1), limit.number(2) + limit.number(3), limit.number(3) == 1
  end

  -- Counts `shift` parts later; nil is 0.
  local function shifted(counts, shift, size)
    local later = {}
    for i = 1, size do
      later[i] = counts[i - shift] or 0
    end
    return later
  end

  local function sum(counts, last)
    local total = 0
    for i = 1, last do
      total = total + counts[i]
    end
    return total
  end

  local function bring_to(ref, now)
    local part, size = part_of(ref.limit)
    local start = now - now % part
    if start > ref.start then
      ref.counts = shifted(ref.counts, (start - ref.start) / part, size)
      ref.start = start
    end
  end

  function family.empty(ref)
    local _, size = part_of(ref.limit)
    ref.start, ref.counts = 0, shifted({}, 0, size)
  end

  local function read(state)
    local _, _, start, part = struct.unpack(HEAD, state)
    local size = (#state - FIRST + 1) / 8
    return start, part, size, { struct.unpack('<' .. string.rep('d', size), state, FIRST) }
  end

  function family.read(ref, state)
    local own, own_size = part_of(ref.limit)
    local start, part, size, counts = read(state)
    counts[size + 1] = nil  -- where the reading ended
    ref.start, ref.counts = start, counts
    return part == own and size == own_size
  end

  function family.written(ref)
    return ref.start
  end

  function family.move_back(ref, now)
    ref.start = now - now % part_of(ref.limit)
  end

  function family.in_use(_, state, at)
    local start, part, size, counts = read(state)
    local shift = math.max(0, (at - at % part - start) / part)
    return sum(shifted(counts, shift, size), size)
  end

  local function used_at(ref, now)
    local part, size, weighted = part_of(ref.limit)
    if not weighted then
      return sum(ref.counts, size)
    end
    local oldest, rest = ref.counts[size], part - math.max(0, now - ref.start)
    return sum(ref.counts, size - 1) + (rest == part and oldest or scaled_up(oldest, rest, part))
  end

  function family.wait(ref, cost, now)
    bring_to(ref, now)
    local part, size, weighted = part_of(ref.limit)
    local room, earliest = ref.limit.burst * MILLION - cost, math.max(ref.start, now)
    for ahead = 0, size do
      local counts, start = shifted(ref.counts, ahead, size), ref.start + ahead * part
      local elapsed = math.max(0, earliest - start)
      if weighted then
        local oldest, spare = counts[size], room - sum(counts, size - 1)
        if oldest > spare and spare >= 0 then
          elapsed = math.max(elapsed, part - scaled_down(spare, part, oldest))
        end
        if spare >= 0 then
          return start + elapsed - now
        end
      elseif sum(counts, size) <= room then
        return start + elapsed - now
      end
    end
  end

  function family.take(ref, cost, _, at)
    bring_to(ref, at)
    ref.counts[1] = ref.counts[1] + cost
  end

  function family.left(ref, now)
    bring_to(ref, now)
    local part, size = part_of(ref.limit)
    local reset = 0
    for i = size, 1, -1 do
      if ref.counts[i] > 0 then
        reset = math.max(reset, ref.start + (size - i + 1) * part - now)
      end
    end
    local free = now >= ref.start and ref.limit.burst * MILLION - used_at(ref, now) or 0
    return math.max(0, free), reset
  end

  function family.write(ref, now, given)
    local part, size = part_of(ref.limit)
    local _, reset = family.left(ref, now)
    local state = struct.pack(HEAD, ref.limit.tag, ref.limit.since, ref.start, part)
        .. struct.pack('<' .. string.rep('d', size), unpack(ref.counts))
    redis.call('SET', ref.state, state, 'PX', expiry(reset, given))
  end

  function family.mark(ref)
    return ref.start
  end

  function family.settle(ref, mark, cost, actual, now)
    bring_to(ref, now)
    local part, size = part_of(ref.limit)
    local change, place = actual - cost, math.floor((ref.start - mark) / part) + 1
    if place < 1 or place > size then
      if change < 0 then
        return false
      end
      place = 1
    end
    ref.counts[place] = math.max(0, ref.counts[place] + change)
    return true
  end

  return family
end
