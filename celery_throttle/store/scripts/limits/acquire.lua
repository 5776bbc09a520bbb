-- acquire.lua: decides over any number of requirements, all or nothing. A refusal writes
-- nothing but a counter.
-- first: gcra_fast_path
-- uses: requirements, decision, key_cap_room, counters
-- KEYS  1   hash: definitions of limits; then the requirements, see `requirements.lua`; then the head of the totals,
--           see `counters.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   'take' | 'peek' | 'upto' (as much of the cost as there is) | 'reserve' | 'slot'
--       3   the longest delay (us) that is accepted of a leaky-queue, '' for any. Other limits may be booked
--           as far ahead, but not beyond FARTHEST
--       then the requirements; then for 'slot': the holder, and its first lease (us)
-- Reply {1, remaining, reset (us), burst, delay (us), granted, ...}
--                      allowed; and for 'reserve' and 'slot' the marks for `settle_reservation.lua`: for each requirement since
--                      when (us) its definition is in force, how many limits it has, two numbers for each limit
--       {0, wait (us), index, remaining, reset (us), burst, kind, pause (us)}
--                      refused by the requirement of this index. The kind is 1 if it waits for a slot, which may be
--                      released before; 2 if the delay is too long, which does not get shorter by coming later; else
--                      0. `gcra_fast_path.lua` leaves the pause out
--       {-1, index, burst}       its cost can never pass
--       {-2, index, now (us)}    it is not defined, or its calendar windows have run out
--       {-3, index}              it has slots, which only 'slot' takes
--       {-4, index, max-keys}    the call needs more keys of its name than may ever be in use

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

local delay, slots = 0, {}
for i = 1, count do
  local limits = requirements[i].limits
  for n = 1, #limits do
    local limit = limits[n]
    local tag = limit.tag
    if tag == LEAKY_QUEUE then
      limit.max_delay = longest
      delay = math.max(delay, algorithm_of(tag, true).delay(limit))
    elseif tag == SLOTS and mode == 'slot' then
      slots[#slots + 1] = limit
      limit.holder, limit.lease = ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])
    elseif tag == SLOTS and mode ~= 'peek' then
      return { -3, i }
    end
  end
end

-- A lease counts from the start of its holder.
local function lengthen_leases(us)
  for _, limit in ipairs(slots) do
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
if mode == 'reserve' or mode == 'slot' then
  for i = 1, count do
    reply[#reply + 1], reply[#reply + 2] = requirements[i].since, #requirements[i].limits
    for _, limit in ipairs(requirements[i].limits) do
      reply[#reply + 1], reply[#reply + 2] = algorithm_of(limit.tag, true).mark(limit)
    end
  end
end
return reply
