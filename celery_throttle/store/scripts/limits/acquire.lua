-- acquire.lua: decides over any number of requirements, all or nothing, for callers that are no worker's gate (see
-- `admit.lua`). A refusal writes nothing but a counter.
-- KEYS  1   hash: definitions of limits; then the requirements, see `requirements.lua`; then the head of the totals,
--           see `counters.lua`
-- ARGV  2   'take' | 'peek' | 'upto' (as much of the cost as there is) | 'reserve' | 'slot'
--       3   the longest delay (us) that is accepted of a leaky-queue, '' for any. Other limits may be booked
--           as far ahead, but not beyond FARTHEST
--       then the requirements; then for 'slot': the holder, and its first lease (us)
-- Reply {1, remaining, reset (us), burst, delay (us), granted, ...}
--                      allowed; and for 'reserve' and 'slot', and with a delay, a list for each requirement: the marks
--                      of `take_marks.lua`
--       {0, wait (us), index, remaining, reset (us), burst, kind, pause (us)}
--                      refused by the requirement of this index. The kind is 1 if it waits for a slot, which may be
--                      released before; 2 if the delay is too long, which does not get shorter by coming later; else
--                      0. The fast path leaves the pause out
--       {-1, index, burst}       its cost can never pass
--       {-2, index, now (us)}    it is not defined, or its calendar windows have run out
--       {-3, index}              it has slots, which only 'slot' takes
--       {-4, index, max-keys}    the call needs more keys of its name than may ever be in use

-- The most frequent decision is made before anything else is: mode 'take' for whole units, where all limits are GCRA,
-- and none has a pause, a key cap, or a state that has to be converted. All other calls fall through. The rules are
-- those of `decision.lua` and `meters.lua`, written in one piece: creating functions and calling them takes longer than
-- all the rest. The tests check both paths against the twin.

if ARGV[2] == 'take' and #KEYS < 4000 then -- more values than Lua's unpack allows fall through
  -- A requirement has three keys and two arguments if none has a key, else four and three; see `requirements.lua`.
  local fields = 2 * (#KEYS - 2) == 3 * (#ARGV - 3) and 1 or 2
  local keys = fields + 1
  local count, now = (#KEYS - 2) / (keys + 1), nil
  local definitions = redis.call('HMGET', KEYS[1], unpack(ARGV, 4, 3 + fields * count))
  local values = redis.call('MGET', unpack(KEYS, 2, 1 + keys * count))
  if ARGV[1] == '' then
    now = redis.call('TIME')
    now = now[1] * 1000000 + now[2]
  else
    now = tonumber(ARGV[1])
  end
  -- For the reply if all limits allow: units left, microseconds until nothing is in use, the states, and how long
  -- (us) these matter.
  local units, burst, reset, states, durations = math.huge, 0, 0, {}, {}
  local wait, bottleneck, refused_units, refused_burst, refused_reset = 0, 0, 0, 0, 0
  local is_simple = true
  for i = 1, count do
    local packed = definitions[fields * i - fields + 1] or definitions[fields * i]
    local state, cost = values[keys * i - keys + 1], ARGV[3 + fields * count + i] / 1000000
    if not packed or values[keys * i - keys + 2] or values[keys * i] or cost % 1 > 0 then
      is_simple = false
      break
    end
    local since, ends, max_keys, _, limits, shadows, tag, numbers, capacity, p, q =
      struct.unpack('<ddddBBBHddd', packed, 34)
    is_simple = ends == 0 and shadows == 0 and (max_keys == 0 or fields == 1)
    if state then
      is_simple = is_simple and #state == 8 + 51 * limits
    else
      is_simple = is_simple and struct.unpack('<d', packed, 18) <= now
    end
    local parts, full_of_all = nil, 0
    for n = 1, is_simple and limits or 0 do
      if n > 1 then
        tag, numbers, capacity, p, q = struct.unpack('<BHddd', packed, 27 * n + 41)
      end
      is_simple = tag == 1 and numbers == 3 and cost <= capacity
      local used, began = 0, now
      if is_simple and state then
        local old_since, at, old_p, old_q, start, tat, ticks = since, nil, nil, nil, nil, nil, nil
        if n == 1 then
          old_since, tag, _, at, old_p, old_q, start, tat, ticks = struct.unpack('<dBHdddddd', state)
        else
          tag, _, at, old_p, old_q, start, tat, ticks =
            struct.unpack('<BHdddddd', state, 51 * n - 42)
        end
        used = (tat - now) * q + ticks
        if used > 0 then
          began = start
        else
          used = 0
        end
        is_simple = tag == 1 and old_since == since and old_p == p and old_q == q and at <= now + 20000
      end
      if not is_simple then
        break
      end
      local over = used - capacity * p + cost * p
      if over > 0 then
        local rest = over % q
        local own = rest > 0 and (over - rest) / q + 1 or over / q
        if own > wait then
          local free = capacity * p - used
          wait, bottleneck, refused_burst = own, i, capacity
          refused_units = free > 0 and math.floor(free / p) or 0
        end
      else
        local own = math.floor(-over / p)
        if own < units then
          units, burst = own, capacity
        end
      end
      local rest = used % q
      local full = rest > 0 and (used - rest) / q + 1 or used / q
      refused_reset = full > refused_reset and full or refused_reset
      used = used + cost * p
      rest = used % q
      full = (used - rest) / q
      if n == 1 then
        parts = struct.pack('<dBHdddddd', since, 1, 51, now, p, q, began, now + full, rest)
      else
        parts = parts .. struct.pack('<BHdddddd', 1, 51, now, p, q, began, now + full, rest)
      end
      full = rest > 0 and full + 1 or full
      full_of_all = full > full_of_all and full or full_of_all
    end
    if not is_simple then
      break
    end
    states[i], durations[i] = parts, full_of_all
    reset = full_of_all > reset and full_of_all or reset
  end
  if is_simple and wait > 0 and (wait > 20000 or wait > (tonumber(ARGV[3]) or 0)) then
    local totals = KEYS[#KEYS] .. ARGV[3 + fields * bottleneck]
    if (ARGV[3] == '' or wait > tonumber(ARGV[3])) and redis.pcall('HINCRBY', totals, 'refused_limit', 1) == 1 then
      redis.pcall('PEXPIRE', totals, TOTALS_KEPT_MS)
    end
    return { 0, wait, bottleneck, refused_units, refused_reset, refused_burst, 0 }
  elseif is_simple and wait == 0 then
    local granted = 0 -- of one name: its keys follow each other, and are counted at once
    for i = 1, count do
      local ms = math.ceil(durations[i] / 1000) + (ARGV[1] == '' and 0 or 3600000)
      redis.call('SET', KEYS[keys * i - keys + 2], states[i], 'PX', ms)
      local name = ARGV[3 + fields * i]
      granted = granted + ARGV[3 + fields * count + i]
      if i == count or ARGV[3 + fields * (i + 1)] ~= name then
        local totals = KEYS[#KEYS] .. name
        if redis.pcall('HINCRBY', totals, 'granted', granted) == granted then
          redis.pcall('PEXPIRE', totals, TOTALS_KEPT_MS)
        end
        granted = 0
      end
    end
    return { 1, units, reset, burst, 0, tonumber(ARGV[4 + fields * count]) }
  end
end

-- library

-- What a requirement could grant now: the amount (whole units unless `fractional`), microseconds until nothing is in
-- use, and the limit that has least.
local function remaining_of(requirement, fractional)
  local limits = requirement.limits
  local amount, reset, least = math.huge, requirement.pause, limits[1]
  for i = 1, #limits do
    local own, own_reset = limits[i].algorithm.remaining(limits[i], fractional)
    own = fractional and own or own - own % MILLION
    if own < amount then
      amount, least = own, limits[i]
    end
    if own_reset > reset then
      reset = own_reset
    end
  end
  return requirement.pause > 0 and 0 or amount, reset, least
end

local mode, longest = ARGV[2], tonumber(ARGV[3])
-- A requirement has three keys and two arguments if none has a key, else four and three.
local other_arguments = mode == 'slot' and 5 or 3
local keyed = 3 * (#ARGV - other_arguments) ~= 2 * (#KEYS - 2)
local count = (#KEYS - 2) / (keyed and 4 or 3)
local requirements, undefined = read_requirements(count, 2, 4, keyed)
if undefined then
  return { -2, undefined, format_integer(now) }
end

local function count_refusal(index, counter)
  if mode ~= 'peek' then
    increase_total(requirements[index].name, counter, 1)
  end
end

local full, full_wait = find_full_key_cap(requirements)
local full_pause = full > 0 and requirements[full].pause
if full_wait < 0 then
  count_refusal(full, 'refused_keys')
  return { -4, full, requirements[full].max_keys }
elseif full > 0 then
  -- A requirement whose key has no room waits like one that is paused.
  requirements[full].pause = math.max(requirements[full].pause, full_wait)
end

-- For 'upto': reduce the costs to what there is.
local granted = requirements[1].cost
if mode == 'upto' then
  local wanted = granted
  for i = 1, count do
    granted = math.min(granted, (remaining_of(requirements[i], true)))
  end
  if wanted % MILLION == 0 then
    granted = granted - granted % MILLION
  end
  if wanted == 0 then
    mode = 'peek'
  end
  for i = 1, count do
    for _, limit in ipairs(requirements[i].limits) do
      -- If there is nothing, one unit is refused.
      limit.cost = granted > 0 and granted or math.min(wanted, MILLION)
    end
  end
end

local delay, slot_limits = 0, {}
for i = 1, count do
  local limits = requirements[i].limits
  for n = 1, #limits do
    local limit = limits[n]
    local tag = limit.tag
    if tag == LEAKY_QUEUE then
      limit.max_delay = longest
      delay = math.max(delay, algorithm_of(tag, true).delay(limit))
    elseif tag == SLOTS and mode == 'slot' then
      slot_limits[#slot_limits + 1] = limit
      limit.holder, limit.lease = ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])
    elseif tag == SLOTS and mode ~= 'peek' then
      return { -3, i }
    end
  end
end

-- A lease counts from the start of its holder.
local function lengthen_leases(us)
  for _, limit in ipairs(slot_limits) do
    limit.lease = limit.lease + us
  end
end

lengthen_leases(delay)
local wait, bottleneck, component = decide(requirements)
if wait < 0 then
  count_refusal(bottleneck, 'refused_cost')
  return { -1, bottleneck, requirements[bottleneck].limits[component].burst }
end
-- A caller that waits wakes up late. So a unit that is free in a moment is booked now, or it would go unused.
local horizon = math.min(FARTHEST, longest or 0)
if mode == 'peek' or mode == 'upto' or delay > 0 or not requirements.bookable or full > 0 then
  horizon = 0
end
if wait > 0 and wait <= horizon then
  lengthen_leases(wait)
  commit(requirements, now + wait)
  delay, wait, bottleneck = wait, 0, 0
elseif wait == 0 and mode ~= 'peek' then
  commit(requirements, now)
end

-- The limit that the reply is about: the one that refuses, or the one with the least remaining.
local remaining, reset, narrowest = math.huge, 0, nil
for i = 1, count do
  local own, own_reset, limit = remaining_of(requirements[i])
  if bottleneck == 0 and own < remaining then
    remaining, narrowest = own, limit
  end
  if own_reset > reset then
    reset = own_reset
  end
end
if bottleneck > 0 then
  narrowest = requirements[bottleneck].limits[component]
  remaining = requirements[bottleneck].pause > 0 and 0 or narrowest.algorithm.remaining(narrowest)
end
remaining = math.floor(remaining / MILLION)
if wait > 0 then
  local needs_slot = narrowest.tag == SLOTS and wait > requirements[bottleneck].pause
  local kind = needs_slot and 1 or longest and delay > longest and 2 or 0
  local pause = bottleneck == full and full_pause or requirements[bottleneck].pause
  local gives_up = not longest or longest <= 0 or kind == 2 or kind == 0 and wait > longest
  if gives_up then -- else the caller waits, and tries again
    count_refusal(bottleneck, pause == wait and 'refused_paused' or needs_slot and 'refused_slots'
      or bottleneck == full and 'refused_keys' or 'refused_limit')
  end
  return { 0, wait, bottleneck, remaining, reset, narrowest.burst, kind, pause }
end
local reply = { 1, remaining, reset, narrowest.burst, delay, granted }
if mode == 'reserve' or mode == 'slot' or mode == 'take' and delay > 0 then
  for i, marks in ipairs(take_marks()(requirements)) do
    reply[6 + i] = marks
  end
end
return reply
