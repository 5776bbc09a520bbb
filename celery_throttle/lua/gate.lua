-- gate.lua: quota for tasks that have a process now, or right after: each on its own.
-- uses: decide
--
-- KEYS  1   hash: definitions of limits
--       then per limit: state, backlog, pause, pause of the key. No limit and key may come twice.
-- ARGV  1   now (us), or '' for the server's clock
--       2   how far ahead (us) a start may be booked
--       then per task: how many times its cost is wanted, how many limits,
--                      per limit: name, field, cost
-- Reply per task
--       {1, times, at once, wait of the first later one (us), p * cost, q}   taken: so many slots
--                             now, the others from that wait on, p * cost / q apart
--       {0}                   full, or others wait in a line, to whose end it belongs
--       {-1, index, burst}    can never pass
--       {-2, index}           limit not defined, index over all tasks; nothing was taken for any
-- A refusal writes nothing.

local given, ahead = ARGV[1], tonumber(ARGV[2])
local now = clock(given)
local all, tasks = {}, {}
local key, arg = 2, 3
while arg <= #ARGV do
  local count = tonumber(ARGV[arg + 1])
  local refs = read_refs(count, key, arg + 2)
  tasks[#tasks + 1] = { refs = refs, wanted = tonumber(ARGV[arg]) }
  for _, ref in ipairs(refs) do
    all[#all + 1] = ref
  end
  key, arg = key + 4 * count, arg + 2 + 3 * count
end
local unknown = look(KEYS[1], all, now, given)
if unknown then
  return { { -2, unknown } }
end

local function admit(refs, wanted)
  local wait, bound = decide(refs)
  if wait < 0 then
    return { -1, bound, refs[bound].limit.burst }
  end
  for _, ref in ipairs(refs) do
    if ref.waiting > 0 or wait > ahead then
      return { 0 }
    end
  end
  local times, at_once, later = 1, 1, 0
  local ref = refs[1]
  local step = ref.cost * ref.limit.p
  if wait > 0 then
    at_once, later = 0, wait
  elseif #refs == 1 and wanted > 1 then
    local free = ref.limit.burst * ref.limit.p - ref.used
    at_once = math.min(wanted, math.floor(free / step))
    times = math.min(wanted, math.floor((free + ahead * ref.limit.q) / step))
    later = math.ceil(((at_once + 1) * step - free) / ref.limit.q)
  end
  take(refs, now, now + wait, given, times)
  return { 1, times, at_once, later, step, ref.limit.q }
end

local replies = {}
for i, task in ipairs(tasks) do
  replies[i] = admit(task.refs, task.wanted)
end
return replies
