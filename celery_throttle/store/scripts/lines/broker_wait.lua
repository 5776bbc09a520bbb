-- broker_wait.lua: decides over a task that waits at the broker, or replies when it has to come back.
-- Each refused task gets a return time of its own, one emission interval behind that of the task before it. A return
-- time only says when to ask again: the limit decides. A task that returns in time and is refused all the same, since
-- another client took the unit, gets the next return time among those to which that happened: they come before all
-- tasks that are new.
--
-- KEYS  1   hash: definitions of limits
--       then per requirement: state, entries, pause of the name, pause of the key, waiting-lists, return-times
--       last: head of the totals, see `counters.lua`
-- ARGV  2   the return time (us) that it was given before, or 0
--       3   how far ahead (us) a start may be booked
--       4   longest wait (us) that is accepted, -1 for any
--       5   the holder of its slots, if it takes any
--       6   their first lease (us)
--       7   '1' if it may run now, '0' if there is no process for it
--       8   '1' if its run settles
--       then per requirement: name, field, cost (millionths)
-- Reply {'admitted', starts in (us), marks, entries and waiting-lists of each slot}    for the marks see `take_for_run`
--       {'wait', wait (us), return time (us), index of the requirement that refuses, expected wait (us)}
--       {'late', expected wait (us), index, for how long (us) it is paused}    would wait too long: nothing was taken
--       {'never', index, burst}                  its cost can never pass
--       {'crowded', index, max-keys, wait (us)}  so many other keys are in use; see `key_cap.lua`
--       {'unknown', index, now (us)}    it is not defined, or its calendar windows have run out
--
-- The return times of a requirement are a packed string of four numbers: the last return time (us) of a new task and
-- of a task that returned in vain; when (us) they were written; and by how much (us) in all they were moved back
-- because the clock was set back. The return times of tasks are by the clock before all of that.

-- Microseconds after which a task checks again whether a slot was released, and whether a pause was lifted: nobody
-- tells it. And the interval between two tasks that wait for a slot.
local SLOT_CHECK, PAUSE_CHECK, SLOT_INTERVAL = 1000000, 60000000, 20000

local NEW, RETURNED = 1, 2

local returned_at, horizon, longest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local descriptor, costs = { limits = {} }, {}
for i = 1, (#KEYS - 2) / 6 do
  local key, arg = 6 * i - 4, 3 * i + 6
  local limit_keys = { ARGV[arg], ARGV[arg + 1], KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3] }
  limit_keys[WAITING_LISTS] = KEYS[key + 4]
  descriptor.limits[i], costs[i] = limit_keys, tonumber(ARGV[arg + 2])
end

-- Read return times. Those that were written by a later clock than now are moved back.
local function read_return_times(key)
  local found = redis.call('GET', key)
  if not found then
    return { 0, 0, moved = 0 }
  end
  local new, returned, written, moved = struct.unpack('<dddd', found)
  local step = math.max(0, written - now)
  return { math.max(0, new - step), math.max(0, returned - step), moved = moved + step }
end

local return_times = {}
for i = 1, #descriptor.limits do
  return_times[i] = read_return_times(KEYS[6 * i + 1])
end

local function write_return_times()
  for i, own in ipairs(return_times) do
    local lasts = math.max(own[NEW], own[RETURNED]) - now
    if lasts > 0 then
      redis.call('SET', KEYS[6 * i + 1], struct.pack('<dddd', own[NEW], own[RETURNED], now, own.moved),
                 'PX', expiry_ms(lasts))
    end
  end
end

local moved = return_times[1].moved
returned_at = returned_at > 0 and math.max(1, returned_at - moved) or 0
if returned_at > now + horizon then
  write_return_times()
  return { 'wait', returned_at - now, returned_at + moved, 1, returned_at - now }
end

local requirements = requirements_of(descriptor, costs)
local undefined = load_requirements(KEYS[1], descriptor, requirements)
if undefined then
  return { 'unknown', undefined, format_integer(now) }
end
local wait, bottleneck, component = decide(requirements, true)
if wait < 0 then
  increase_total(requirements[bottleneck].name, 'dropped_cost', 1)
  return { 'never', bottleneck, requirements[bottleneck].limits[component].burst }
end
local full, full_wait = find_full_key_cap(requirements)
if full > 0 and (returned_at == 0 or full_wait < 0) then
  increase_total(requirements[full].name, 'dropped_keys', 1)
  return { 'crowded', full, requirements[full].max_keys, full_wait }
elseif full_wait > wait then
  wait, bottleneck, component = full_wait, full, 1
end

if wait > SLOT_CHECK and requirements.slots_full and requirements[bottleneck].pause < wait
    and requirements[bottleneck].limits[component].tag == SLOTS then
  wait = SLOT_CHECK
end
local expected = wait
if bottleneck > 0 and requirements[bottleneck].pause == wait then
  wait = math.min(wait, PAUSE_CHECK)
end

local group = returned_at > 0 and RETURNED or NEW
local last = 0
for i = 1, #requirements do
  last = math.max(last, return_times[i][group])
end
-- A new task does not overtake those that wait.
local is_admitted = returned_at > 0 and wait <= (requirements.bookable and horizon or 0)
  or wait == 0 and last <= now
if is_admitted and ARGV[7] == '1' then
  local reply = { 'admitted', wait, take_for_run(requirements, descriptor, costs, wait, ARGV[8] == '1', ARGV[5],
                                                 tonumber(ARGV[6])) }
  write_return_times()
  return reply
end

local function interval_of(requirement)
  local interval = 0
  for _, limit in ipairs(requirement.limits) do
    local own = limit.tag == SLOTS and SLOT_INTERVAL or math.ceil(limit.cost / MILLION * limit.p / limit.q)
    interval = math.max(interval, own)
  end
  return interval
end

local interval = 0
for _, requirement in ipairs(requirements) do
  interval = math.max(interval, interval_of(requirement))
end
local return_time = math.max(now + wait, last + interval)
expected, bottleneck = math.max(expected, return_time - now), math.max(1, bottleneck)
if longest >= 0 and expected > longest then
  increase_total(requirements[bottleneck].name, 'dropped_late', 1)
  return { 'late', expected, bottleneck, requirements[bottleneck].pause }
end
for i = 1, #requirements do
  return_times[i][group] = return_time
end
write_return_times()
if returned_at == 0 then
  increase_totals(descriptor, 'broker_waits', 1)
end
return { 'wait', return_time - now, return_time + moved, bottleneck, expected }
