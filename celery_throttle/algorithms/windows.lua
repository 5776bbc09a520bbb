-- windows.lua: algorithms that count in windows.
-- uses: clock, exact
--
-- Library. Twin: `celery_throttle/algorithms/windows.py`, which explains the rules.

-- Of a limit it sets `start`, `stop`, `count` and `began` (when the first of it was taken). Its part of
-- the state: tag, size and these.
local function make_fixed_window()
  local fixed, FORM = {}, '<BHdddd'

  -- Where windows begin: the numbers of the definition are {period, 1 if from the first request}, or
  -- {0, moments at which windows of a calendar begin}.
  local function window_of(limit, at)
    local period = number(limit, 1)
    if period > 0 then
      local start = number(limit, 2) == 1 and at or at - at % period
      return start, start + period
    end
    local low, high = 2, limit.numbers
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if number(limit, middle) <= at then
        low = middle
      else
        high = middle
      end
    end
    return number(limit, low), number(limit, high)
  end

  -- Whether the window now, and the one after it, are not both known.
  function fixed.is_stale(limit, now)
    return number(limit, 1) == 0
        and (now < number(limit, 2) or now >= number(limit, limit.numbers - 1))
  end

  function fixed.read(limit, state, from, now)
    limit.start, limit.stop, limit.count, limit.began = 0, 0, 0, 0
    if state then
      local _
      _, _, limit.start, limit.stop, limit.count, limit.began = struct.unpack(FORM, state, from)
    end
    return limit.start <= now + FARTHEST
  end

  function fixed.is_of()
    return true
  end

  function fixed.move_back(limit, state, from, now)
    if not fixed.read(limit, state, from, now) then
      local _, stop = window_of(limit, now)
      local _, next_stop = window_of(limit, stop)
      limit.start, limit.stop = now, math.min(limit.stop, next_stop)
    end
  end

  function fixed.in_use(state, from, at)
    local _, _, _, stop, count = struct.unpack(FORM, state, from)
    return at < stop and count or 0
  end

  function fixed.fill(limit, amount, at)
    limit.start, limit.stop = window_of(limit, at)
    limit.count, limit.began = amount, at
  end

  function fixed.check(limit, now)
    if now >= limit.stop then
      return 0
    elseif limit.count + limit.cost <= limit.burst * MILLION then
      return math.max(0, limit.start - now)
    end
    return limit.stop - now
  end

  local function add(limit, amount, now, at)
    if at >= limit.stop then
      fixed.fill(limit, 0, at)
      limit.began = now
    end
    limit.count = limit.count + amount
  end

  function fixed.take(limit, now, at)
    add(limit, limit.cost, now, at)
  end

  function fixed.write(limit, now)
    local state = struct.pack(FORM, limit.tag, 35, limit.start, limit.stop, limit.count, limit.began)
    return state, limit.stop - now
  end

  function fixed.left(limit, now)
    if now >= limit.stop then
      return limit.burst * MILLION, 0
    end
    local free = now >= limit.start and math.max(0, limit.burst * MILLION - limit.count) or 0
    return free, limit.count > 0 and limit.stop - now or 0
  end

  function fixed.mark(limit)
    return limit.began, 0
  end

  function fixed.settle(limit, mark, _, cost, actual, now)
    local change = actual - cost
    if now < limit.stop and (mark == limit.began or change > 0) then
      limit.count = math.max(0, limit.count + change)
    elseif change > 0 then
      add(limit, change, now, now)
    else
      return false
    end
    return true
  end

  -- What is taken now must not start in the window after it.
  function fixed.good_for(limit, now)
    return limit.stop - now
  end

  return fixed
end

-- Of a limit it sets `start` (of the current part), `counts`, that of the current part first, and `began`
-- (since when there was always something in use). Its part of the state: tag, size, start, part (us),
-- began, then the counts.
local function make_sliding_window()
  local sliding, FORM, HEAD = {}, '<BHddd', 27
  local _, scaled_down, scaled_up = exact()

  -- Microseconds a part, how many counts, and whether the oldest is weighted.
  local function parts_of(limit)
    return number(limit, 1), number(limit, 2) + number(limit, 3), number(limit, 3) == 1
  end

  -- Counts `shift` parts later.
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

  local function bring_to(limit, now)
    local part, size = parts_of(limit)
    local start = now - now % part
    if start > limit.start then
      limit.counts = shifted(limit.counts, (start - limit.start) / part, size)
      limit.start = start
    elseif start < limit.start and sum(limit.counts, size) == 0 then
      limit.start = start
    end
  end

  local function unpack_part(state, from)
    local _, bytes, start, part, began = struct.unpack(FORM, state, from)
    local size = (bytes - HEAD) / 8
    local counts = { struct.unpack('<' .. string.rep('d', size), state, from + HEAD) }
    counts[size + 1] = nil  -- where the reading ended
    return start, part, size, counts, began
  end

  function sliding.read(limit, state, from, now)
    local own_part, own_size = parts_of(limit)
    if not state then
      limit.start, limit.counts, limit.began = 0, shifted({}, 0, own_size), now
      return true
    end
    local part, size
    limit.start, part, size, limit.counts, limit.began = unpack_part(state, from)
    return part == own_part and size == own_size and limit.start <= now + FARTHEST
  end

  function sliding.is_of(limit, state, from)
    local own_part, own_size = parts_of(limit)
    local _, part, size = unpack_part(state, from)
    return part == own_part and size == own_size
  end

  function sliding.move_back(limit, state, from, now)
    if not sliding.read(limit, state, from, now) then
      local part, size = parts_of(limit)
      limit.start, limit.counts = now - now % part, shifted({ sum(limit.counts, size) }, 0, size)
    end
  end

  function sliding.in_use(state, from, at)
    local start, part, size, counts = unpack_part(state, from)
    local shift = math.max(0, (at - at % part - start) / part)
    return sum(shifted(counts, shift, size), size)
  end

  function sliding.fill(limit, amount, at)
    bring_to(limit, at)
    limit.counts[1], limit.began = amount, at
  end

  local function used_at(limit, now)
    local part, size, weighted = parts_of(limit)
    if not weighted then
      return sum(limit.counts, size)
    end
    local oldest, rest = limit.counts[size], part - math.max(0, now - limit.start)
    return sum(limit.counts, size - 1) + (rest == part and oldest or scaled_up(oldest, rest, part))
  end

  -- Goes through the parts to come, the current one first, to the first in which the cost fits.
  function sliding.check(limit, now)
    bring_to(limit, now)
    local part, size, weighted = parts_of(limit)
    local room, earliest = limit.burst * MILLION - limit.cost, math.max(limit.start, now)
    for ahead = 0, size do
      local counts, start = shifted(limit.counts, ahead, size), limit.start + ahead * part
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

  local function begin(limit, now)
    bring_to(limit, now)
    limit.began = sum(limit.counts, #limit.counts) > 0 and limit.began or now
  end

  function sliding.take(limit, now, at)
    begin(limit, now)
    bring_to(limit, at)
    limit.counts[1] = limit.counts[1] + limit.cost
  end

  function sliding.left(limit, now)
    bring_to(limit, now)
    local part, size = parts_of(limit)
    local reset = 0
    for i = size, 1, -1 do
      if limit.counts[i] > 0 then
        reset = math.max(reset, limit.start + (size - i + 1) * part - now)
      end
    end
    local free = now >= limit.start and limit.burst * MILLION - used_at(limit, now) or 0
    return math.max(0, free), reset
  end

  function sliding.write(limit, now)
    local part, size = parts_of(limit)
    local _, reset = sliding.left(limit, now)
    local head = struct.pack(FORM, limit.tag, HEAD + 8 * size, limit.start, part, limit.began)
    return head .. struct.pack('<' .. string.rep('d', size), unpack(limit.counts)), reset
  end

  function sliding.mark(limit)
    return limit.start, limit.began
  end

  function sliding.settle(limit, mark, began, cost, actual, now)
    begin(limit, now)
    local part, size = parts_of(limit)
    local change, place = actual - cost, math.floor((limit.start - mark) / part) + 1
    if began ~= limit.began or place < 1 or place > size then
      if change < 0 then
        return false
      end
      place = 1
    end
    limit.counts[place] = math.max(0, limit.counts[place] + change)
    return true
  end

  return sliding
end
