-- gate.lua: quota for tasks that have a process now, or right after: each on its own.
-- uses: decide
--
-- KEYS  1   hash: definitions of limits
--       then per limit: state, entries, pause, pause of the key, backlog. No limit and key may come
--       twice.
-- ARGV  1   now (us), or '' for the server's clock
--       2   how far ahead (us) a start may be booked
--       then per task: how many times its cost is wanted, how many limits,
--                      per limit: name, field, cost (millionths of a unit)
-- Reply per task
--       {1, times, at once, wait of the first later one (us), apart (ns), good for (us)}   taken: so
--                             many slots now, the others from that wait on; all of them good so long
--       {0}                   full, or others wait in a line, to whose end it belongs; or it needs a
--                             slot, which is not taken here
--       {-1, index, burst}    can never pass
--       {-2, index, now (us)}    limit not defined, or the windows of its calendar have run out: index
--                             over all tasks; nothing was taken for any
-- A refusal writes nothing.

local given, ahead = ARGV[1], tonumber(ARGV[2])
local now = clock(given)
local all, tasks = {}, {}
local key, arg = 2, 3
while arg <= #ARGV do
  local count = tonumber(ARGV[arg + 1])
  local refs = read_refs(count, key, arg + 2, 5)
  tasks[#tasks + 1] = { refs = refs, wanted = tonumber(ARGV[arg]) }
  for _, ref in ipairs(refs) do
    all[#all + 1] = ref
  end
  key, arg = key + 5 * count, arg + 2 + 3 * count
end
local unknown = look(KEYS[1], all, now, given)
if unknown then
  return { { -2, unknown, whole(now) } }
end
read_backlogs(all)

-- How many times a single limit admits: in all, at once, and the wait of the first later one.
local function times_of(ref, wanted)
  local limit = ref.limit
  if limit.kind == 'q' then
    return 1, 1, 0
  elseif limit.family.times then
    local at_once, times, later = limit.family.times(ref, ref.cost, now, ahead)
    return math.min(wanted, times), math.min(wanted, at_once), later
  end
  local times = math.min(wanted, math.floor(left(ref, now) / ref.cost))
  return times, times, 0
end

local function admit(refs, wanted)
  local wait, bound = decide(refs, now, true)
  if wait < 0 then
    return { -1, bound, refs[bound].limit.burst }
  end
  local good = ahead
  for _, ref in ipairs(refs) do
    if ref.waiting > 0 or wait > ahead or ref.limit.kind == 'c' then
      return { 0 }
    end
  end
  local times, at_once, later = 1, 1, 0
  if wait > 0 then
    at_once, later = 0, wait
  elseif #refs == 1 and wanted > 1 then
    times, at_once, later = times_of(refs[1], wanted)
  end
  local ref = refs[1]
  local apart = times > 1 and ref.cost * ref.limit.p / ref.limit.q / 1000 or 0
  ref.cost = ref.cost * times
  take(refs, now, now + wait, given)
  for _, one in ipairs(refs) do
    local family = one.limit.family
    good = family.good_for and math.min(good, family.good_for(one, now)) or good
  end
  return { 1, times, at_once, later, math.ceil(apart), good }
end

local replies = {}
for i, task in ipairs(tasks) do
  replies[i] = admit(task.refs, task.wanted)
end
return replies
