-- acquire.lua: decide over any number of limits, all or nothing.
-- uses: decide
--
-- KEYS  1            hash: definitions of limits
--       then per limit: state, backlog, pause, pause of the key
-- ARGV  1            now (us), or '' for the server's clock
--       2            'take' | 'peek' | 'gate'; a gate yields to tasks that wait in lines
--       3            how many times the cost is wanted (only a gate asks for more than 1)
--       4            how far ahead (us) a gate may book
--       then per limit: name, field, cost
-- Reply {1, times, at once, wait of the first later one (us), p * cost, q}   taken by a gate: so
--       many slots now, the others from that wait on, p * cost / q apart
--       {1, remaining, reset (us), burst}                        allowed
--       {0, wait (us), index that binds, remaining, reset (us), burst}       refused
--       {-1, index, burst}                                        can never pass
--       {-2, index}                                               limit not defined
-- A refusal writes nothing.

local given, mode = ARGV[1], ARGV[2]
local now = clock(given)
local refs = read_refs((#KEYS - 1) / 4, 2, 5)
local unknown = look(KEYS[1], refs, now, given)
if unknown then
  return { -2, unknown }
end
local wait, bound = decide(refs)
if wait < 0 then
  return { -1, bound, refs[bound].limit.burst }
end

if mode == 'gate' then
  local ahead, times, at_once, later = tonumber(ARGV[4]), 1, 1, 0
  for i, ref in ipairs(refs) do
    if ref.waiting > 0 or wait > ahead then
      return { 0, wait, math.max(bound, i), 0, 0, ref.limit.burst }
    end
  end
  local ref, wanted = refs[1], tonumber(ARGV[3])
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

if wait == 0 and mode ~= 'peek' then
  take(refs, now, now, given, 1)
end
local remaining, reset, narrow = math.huge, 0, 1
for i, ref in ipairs(refs) do
  local own, full = left(ref)
  if i == bound or bound == 0 and own < remaining then
    remaining, narrow = own, i
  end
  reset = math.max(reset, full)
end
if wait == 0 then
  return { 1, remaining, reset, refs[narrow].limit.burst }
end
return { 0, wait, bound, remaining, reset, refs[bound].limit.burst }
