-- admit.lua: quota for tasks that have a process now, or right after: each on its own.
-- uses: refs, bulk_commands
--
-- KEYS  1   hash: definitions of limits
--       then for each ref of all tasks: state, pause, pause of the key; then for each: entries; then
--       for each: backlog. No name and key may come twice.
-- ARGV  1   now (us), or '' for the server's clock
--       2   how far ahead (us) a start may be booked
--       3   how many tasks
--       4   '1' if any ref has a key; see `refs.lua`
--       then for each task: how many times its cost is wanted, how many refs;
--       then for each ref: field of the key, field of the name; then for each: cost (millionths)
-- Reply per task
--       {1, times, at once, wait of the first later one (us), apart (ns), good for (us)}   taken: so
--                             many slots now, the others from that wait on; all of them good so long
--       {0}                   full, or others wait in a line, to whose end it belongs; or there is no
--                             room for its key, or it needs a slot, which is not taken here
--       {-1, index, burst}    can never pass
--       {-2, index, now (us)}    not defined, or the windows of a calendar have run out: index over all
--                             refs; nothing was taken for any
-- A refusal writes nothing.

local given, ahead = ARGV[1], tonumber(ARGV[2])
local now, tasks = clock(given), tonumber(ARGV[3])
local keyed = ARGV[4] == '1'
local count = (#KEYS - 1) / (keyed and 5 or 4)
local all, unknown = read_refs(count, 2, 5 + 2 * tasks, keyed, now, given)
if unknown then
  return { { -2, unknown, whole(now) } }
end
local backlogs = read_many('MGET', nil, KEYS, #KEYS - count + 1, #KEYS)

-- How many times a single limit admits: in all, at once, and the wait of the first later one.
local function times_of(limit, wanted)
  if limit.tag == LEAKY_QUEUE then
    return 1, 1, 0
  elseif limit.tag < LEAKY_QUEUE then
    local at_once, times, later = algorithm_of(limit.tag, true).times(limit, ahead)
    return math.min(wanted, times), math.min(wanted, at_once), later
  end
  local times = math.min(wanted, math.floor(limit.algorithm.left(limit, now, true) / limit.cost))
  return times, times, 0
end

local function admit(refs, wanted, others)
  local wait, bound, place = decide(refs, now, true)
  if wait < 0 then
    return { -1, bound, refs[bound].limits[place].burst }
  elseif wait > ahead or others or full_crowd(refs, now) > 0 then
    return { 0 }
  end
  local times, at_once, later, apart = 1, 1, 0, 0
  local first = refs[1].limits[1]
  if wait > 0 then
    at_once, later = 0, wait
  elseif wanted > 1 and #refs == 1 and #refs[1].limits == 1 then
    times, at_once, later = times_of(first, wanted)
    apart = math.ceil(first.cost * first.p / first.q / 1000)
    first.cost = first.cost * times
  end
  take(refs, now, now + wait, given)
  local good = ahead
  for _, ref in ipairs(refs) do
    for _, limit in ipairs(ref.limits) do
      if limit.tag == FIXED_WINDOW then
        good = math.min(good, limit.algorithm.good_for(limit, now))
      end
    end
  end
  return { 1, times, at_once, later, apart, good }
end

local function has_slots(ref)
  for _, limit in ipairs(ref.limits) do
    if limit.tag == SLOTS then
      return true
    end
  end
end

local replies, at = {}, 0
for i = 1, tasks do
  local refs, others = {}, false
  for j = 1, tonumber(ARGV[4 + 2 * i]) do
    at = at + 1
    refs[j] = all[at]
    others = others or tonumber(backlogs[at] or 0) > 0 or has_slots(all[at])
  end
  replies[i] = admit(refs, tonumber(ARGV[3 + 2 * i]), others)
end
return replies
