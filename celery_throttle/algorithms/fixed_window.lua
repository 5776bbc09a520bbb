-- fixed_window.lua: the fixed window: one count for each window.
-- Twin: `windows.py`, which explains the rule. Its part of the state: tag, size, and
--   start, stop    the window (us)
--   count          amount taken in it
--   began          when (us) the first take of it starts: by then no take of the window before starts
-- Adds them to a limit. The parameters of a definition are {period, 1 if a window begins with its first request, else
-- 0}, or {0, the moments (us) at which the windows of a calendar begin}.

local FIXED_FORM = '<BHdddd'
local algorithm = {}

local function begins_with_request(limit)
  return parameter(limit, 1) > 0 and parameter(limit, 2) == 1
end

local function window_at(limit, at)
  local period = parameter(limit, 1)
  if period > 0 then
    local start = begins_with_request(limit) and at or at - at % period
    return start, start + period
  end
  if at < parameter(limit, 2) then
    return at, parameter(limit, 2) -- of a window that is not known any more, as it has ended
  end
  local low, high = 2, limit.parameters
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if parameter(limit, middle) <= at then
      low = middle
    else
      high = middle
    end
  end
  return parameter(limit, low), parameter(limit, high)
end

-- Whether the windows of a calendar have run out: the window now or the next one is not known.
function algorithm.is_expired(limit)
  return parameter(limit, 1) == 0
      and (now < parameter(limit, 2) or now >= parameter(limit, limit.parameters - 1))
end

function algorithm.read(limit, state, from)
  limit.start, limit.stop, limit.count, limit.began = 0, 0, 0, 0
  if state then
    local _
    _, _, limit.start, limit.stop, limit.count, limit.began = struct.unpack(FIXED_FORM, state, from)
  end
  return limit.start <= now + FARTHEST, true
end

function algorithm.move_back(limit, state, from)
  if not algorithm.read(limit, state, from) then
    local _, stop = window_at(limit, now)
    local _, next_stop = window_at(limit, stop)
    limit.start, limit.stop = now, math.min(limit.stop, next_stop)
  end
end

function algorithm.in_use(state, from, at)
  local _, _, _, stop, count = struct.unpack(FIXED_FORM, state, from)
  return at < stop and count or 0
end

function algorithm.fill(limit, amount, at)
  limit.start, limit.stop = window_at(limit, at)
  limit.count, limit.began = amount, at
end

function algorithm.check(limit)
  if now >= limit.stop then
    return 0
  elseif limit.count + limit.cost <= limit.burst * MILLION then
    return math.max(0, limit.start - now)
  end
  return limit.stop - now
end

local function add(limit, amount, at)
  if at >= limit.stop then
    algorithm.fill(limit, 0, at)
  end
  limit.count = limit.count + amount
end

function algorithm.take(limit, at)
  add(limit, limit.cost, at)
end

function algorithm.write(limit)
  local state = struct.pack(FIXED_FORM, limit.tag, 35, limit.start, limit.stop, limit.count, limit.began)
  return state, limit.stop - now
end

function algorithm.remaining(limit)
  if now >= limit.stop then
    return limit.burst * MILLION, 0
  end
  local free = now >= limit.start and math.max(0, limit.burst * MILLION - limit.count) or 0
  return free, limit.count > 0 and limit.stop - now or 0
end

function algorithm.mark(limit)
  return limit.began, 0
end

function algorithm.settle(limit, mark, _, cost, actual)
  local change = actual - cost
  if now < limit.stop and (mark == limit.began or change > 0) then
    limit.count = math.max(0, limit.count + change)
    if limit.count == 0 and begins_with_request(limit) then
      limit.stop = math.max(limit.start, now)
    end
  elseif change > 0 then
    add(limit, change, now)
  else
    return false
  end
  return true
end

-- For how long (us) what is taken now may start: not in the next window.
function algorithm.booking_time(limit)
  return limit.stop - now
end

return algorithm
