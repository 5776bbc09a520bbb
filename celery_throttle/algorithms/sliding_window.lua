-- sliding_window.lua: the sliding window: one count for each part of it, the oldest weighted or dropped.
-- Twin: `windows.py`, which explains the rule. Its part of the state: tag, size, and
--   start     of the current part (us)
--   part      microseconds a part
--   began     since when (us) there was always something in use
--   counts    amounts taken in each part, that of the current one first
-- Adds start, began and counts to a limit. The parameters of a definition are {microseconds a part, parts, 1 if there
-- is one count more, weighted, else 0}.

local SLIDING_FORM, SLIDING_HEAD_SIZE = '<BHddd', 27
local algorithm = {}
local scale_down, scale_up = scaling()

-- Microseconds a part, how many counts, and whether the oldest is weighted.
local function parts_of(limit)
  return parameter(limit, 1), parameter(limit, 2) + parameter(limit, 3), parameter(limit, 3) == 1
end

local function shift_counts(counts, shift, size)
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

local function advance_to(limit, at)
  local part, size = parts_of(limit)
  local start = at - at % part
  if start > limit.start then
    limit.counts = shift_counts(limit.counts, (start - limit.start) / part, size)
    limit.start = start
  elseif start < limit.start and sum(limit.counts, size) == 0 then
    limit.start = start
  end
end

local function unpack_state(state, from)
  local _, bytes, start, part, began = struct.unpack(SLIDING_FORM, state, from)
  local size = (bytes - SLIDING_HEAD_SIZE) / 8
  local counts = { struct.unpack('<' .. string.rep('d', size), state, from + SLIDING_HEAD_SIZE) }
  counts[size + 1] = nil -- the position where the reading ended
  return start, part, size, counts, began
end

function algorithm.read(limit, state, from)
  local own_part, own_size = parts_of(limit)
  if not state then
    limit.start, limit.counts, limit.began = 0, shift_counts({}, 0, own_size), now
    return true
  end
  local part, size
  limit.start, part, size, limit.counts, limit.began = unpack_state(state, from)
  local is_same = part == own_part and size == own_size
  return is_same and limit.start <= now + FARTHEST, is_same
end

function algorithm.move_back(limit, state, from)
  if not algorithm.read(limit, state, from) then
    local part, size = parts_of(limit)
    limit.start, limit.counts = now - now % part, shift_counts({ sum(limit.counts, size) }, 0, size)
  end
end

function algorithm.in_use(state, from, at)
  local start, part, size, counts = unpack_state(state, from)
  local shift = math.max(0, (at - at % part - start) / part)
  return sum(shift_counts(counts, shift, size), size)
end

function algorithm.fill(limit, amount, at)
  advance_to(limit, at)
  limit.counts[1], limit.began = amount, at
end

local function used_now(limit)
  local part, size, is_weighted = parts_of(limit)
  if not is_weighted then
    return sum(limit.counts, size)
  end
  local oldest, rest = limit.counts[size], part - math.max(0, now - limit.start)
  return sum(limit.counts, size - 1) + (rest == part and oldest or scale_up(oldest, rest, part))
end

-- Goes through the parts to come, the current one first, to the first in which the cost fits.
function algorithm.check(limit)
  advance_to(limit, now)
  local part, size, is_weighted = parts_of(limit)
  local room, earliest = limit.burst * MILLION - limit.cost, math.max(limit.start, now)
  for ahead = 0, size do
    local counts, start = shift_counts(limit.counts, ahead, size), limit.start + ahead * part
    local elapsed = math.max(0, earliest - start)
    if is_weighted then
      local oldest, spare = counts[size], room - sum(counts, size - 1)
      if oldest > spare and spare >= 0 then
        elapsed = math.max(elapsed, part - scale_down(spare, part, oldest))
      end
      if spare >= 0 then
        return start + elapsed - now
      end
    elseif sum(counts, size) <= room then
      return start + elapsed - now
    end
  end
end

local function note_begin(limit)
  advance_to(limit, now)
  limit.began = sum(limit.counts, #limit.counts) > 0 and limit.began or now
end

function algorithm.take(limit, at)
  note_begin(limit)
  advance_to(limit, at)
  limit.counts[1] = limit.counts[1] + limit.cost
end

function algorithm.remaining(limit)
  advance_to(limit, now)
  local part, size = parts_of(limit)
  local reset = 0
  for i = size, 1, -1 do
    if limit.counts[i] > 0 then
      reset = math.max(reset, limit.start + (size - i + 1) * part - now)
    end
  end
  local free = now >= limit.start and limit.burst * MILLION - used_now(limit) or 0
  return math.max(0, free), reset
end

function algorithm.write(limit)
  local part, size = parts_of(limit)
  local _, reset = algorithm.remaining(limit)
  local head = struct.pack(SLIDING_FORM, limit.tag, SLIDING_HEAD_SIZE + 8 * size, limit.start, part, limit.began)
  return head .. struct.pack('<' .. string.rep('d', size), unpack(limit.counts)), reset
end

function algorithm.mark(limit)
  return limit.start, limit.began
end

function algorithm.settle(limit, mark, began, cost, actual)
  note_begin(limit)
  local part, size = parts_of(limit)
  local change, n = actual - cost, math.floor((limit.start - mark) / part) + 1
  if began ~= limit.began or n < 1 or n > size then
    if change < 0 then
      return false
    end
    n = 1
  end
  limit.counts[n] = math.max(0, limit.counts[n] + change)
  return true
end

return algorithm
