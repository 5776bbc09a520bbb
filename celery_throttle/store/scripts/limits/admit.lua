-- admit.lua: takes quota for tasks that have a process now or in a moment; decides over each task alone.
-- KEYS  1   hash: definitions of limits; then the requirements of all tasks, see `requirements.lua`; then per
--           requirement: backlog; then the head of the totals, see `counters.lua`. No name and key may occur twice.
-- ARGV  2   how far ahead (us) a start may be booked
--       3   how many tasks
--       4   '1' if any requirement has a key
--       then per task: how many times its cost is wanted, how many requirements it has. No more is taken than the
--       limit gives in one second: what the worker does not use of that is lost;
--       then the requirements
-- Reply per task
--       {1, times, at once, wait of the first later one (us), interval (ns), lifetime (us), marks}   taken so many times:
--                             some at once, the others from the wait on, one interval apart; all expire after the
--                             lifetime. Marks, see `take_marks.lua`, if a limit takes more than a second to give the
--                             cost again: it is taken once, and the worker gives it back if no task uses it
--       {0}                   refused: a limit is full; or tasks wait in a line, whose end it has to join; or there is
--                             no room for its key; or it needs a slot, which this script does not take
--       {-1, index, burst}    its cost can never pass
--       {-2, index, now (us)}    the only reply: this requirement (of all tasks) is not defined, or its calendar
--                             windows have run out

local horizon, tasks, keyed = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local count = (#KEYS - 2) / (keyed and 5 or 4)
local all, undefined = read_requirements(count, 2, 5 + 2 * tasks, keyed)
if undefined then
  return { { -2, undefined, format_integer(now) } }
end
local backlogs = read_many('MGET', nil, KEYS, #KEYS - count, #KEYS - 1)

-- How many times a single limit admits its cost: in all, at once, and the wait (us) of the first later one.
local function times_of(limit, wanted)
  wanted = math.min(wanted, math.max(1, math.floor(1e12 * limit.q / (limit.cost * limit.p))))
  if limit.tag == LEAKY_QUEUE then
    return 1, 1, 0
  elseif limit.tag < LEAKY_QUEUE then
    local at_once, times, later = algorithm_of(limit.tag, true).times(limit, horizon)
    return math.min(wanted, times), math.min(wanted, at_once), later
  end
  local times = math.min(wanted, math.floor(limit.algorithm.remaining(limit, true) / limit.cost))
  return times, times, 0
end

local function admit(requirements, wanted, is_blocked)
  local wait, bottleneck, component = decide(requirements, true)
  if wait < 0 then
    return { -1, bottleneck, requirements[bottleneck].limits[component].burst }
  elseif wait > (requirements.bookable and horizon or 0) or is_blocked or find_full_key_cap(requirements) > 0 then
    return { 0 }
  end
  local times, at_once, later, interval = 1, 1, 0, 0
  local first = requirements[1].limits[1]
  if wait > 0 then
    at_once, later = 0, wait
  elseif wanted > 1 and #requirements == 1 and #requirements[1].limits == 1 then
    times, at_once, later = times_of(first, wanted)
    interval = math.ceil(first.cost * first.p / first.q / 1000)
    first.cost = first.cost * times
  end
  commit(requirements, now + wait, times)
  local lifetime, marks = horizon, is_slow(requirements, LONG) and take_marks()(requirements) or nil
  for _, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits) do
      if limit.tag == FIXED_WINDOW then
        lifetime = math.min(lifetime, limit.algorithm.booking_time(limit))
      end
    end
  end
  return { 1, times, at_once, later, interval, lifetime, marks }
end

local function has_slots(requirement)
  for _, limit in ipairs(requirement.limits) do
    if limit.tag == SLOTS then
      return true
    end
  end
end

local replies, n = {}, 0
for i = 1, tasks do
  local requirements, is_blocked = { has_shadows = all.has_shadows }, false
  for j = 1, tonumber(ARGV[4 + 2 * i]) do
    n = n + 1
    requirements[j] = all[n]
    is_blocked = is_blocked or tonumber(backlogs[n] or 0) > 0 or has_slots(all[n])
  end
  replies[i] = admit(requirements, tonumber(ARGV[3 + 2 * i]), is_blocked)
end
return replies
