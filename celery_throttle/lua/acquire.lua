-- acquire.lua: decide over any number of limits, all or nothing.
-- uses: decide
--
-- KEYS  1            hash: definitions of limits
--       then per limit: state, entries, pause, pause of the key
-- ARGV  1            now (us), or '' for the server's clock
--       2            'take' | 'peek' | 'upto' (as much of the costs as there is) | 'reserve' | 'slot'
--       3, 4         of 'slot': who takes it, and for how long (us) at first
--       5            the longest delay (us) of a leaky-queue that is accepted, '' for any
--       then per limit: name, field, cost (millionths of a unit)
-- Reply {1, remaining, reset (us), burst, delay (us), granted, mark...}    allowed
--       {0, wait (us), index that binds, remaining, reset (us), burst, whether slots bind}    refused
--       {-1, index, burst}    can never pass
--       {-2, index, now (us)}    limit not defined, or the windows of its calendar have run out
--       {-3, index}           has slots, which only 'slot' takes
-- A refusal writes nothing.

local given, mode = ARGV[1], ARGV[2]
local now = clock(given)
local refs = read_refs((#KEYS - 1) / 4, 2, 6, 4)
local unknown = look(KEYS[1], refs, now, given)
if unknown then
  return { -2, unknown, whole(now) }
end

local granted = refs[1].cost
if mode == 'upto' then
  local wanted = granted
  for _, ref in ipairs(refs) do
    granted = math.min(granted, (left(ref, now, true)))
  end
  if wanted % MILLION == 0 then
    granted = granted - granted % MILLION
  end
  if wanted == 0 then
    mode = 'peek'
  end
  for _, ref in ipairs(refs) do
    -- Nothing to be had is a refusal of one unit.
    ref.cost = granted > 0 and granted or math.min(wanted, MILLION)
  end
end

if ARGV[5] ~= '' then
  for _, ref in ipairs(refs) do
    ref.longest = tonumber(ARGV[5])
  end
end
local wait, bound = decide(refs, now)
if wait < 0 then
  return { -1, bound, refs[bound].limit.burst }
end
local reply = { 1, 0, 0, 0, 0, 0 }
if wait == 0 then
  for i, ref in ipairs(refs) do
    local family = ref.limit.family
    if ref.limit.kind == 'c' and mode ~= 'peek' then
      if mode ~= 'slot' then
        return { -3, i }
      end
      ref.holder, ref.lease = ARGV[3], tonumber(ARGV[4])
    elseif ref.limit.kind == 'q' then
      reply[5] = math.max(reply[5], family.delay(ref, now))
    end
  end
  if mode ~= 'peek' then
    take(refs, now, now, given)
    reply[6] = granted
  end
  if mode == 'reserve' then
    for i, ref in ipairs(refs) do
      reply[5 + 2 * i], reply[6 + 2 * i] = ref.limit.since, ref.limit.family.mark(ref)
    end
  end
end

local remaining, reset, narrow = math.huge, 0, 1
for i, ref in ipairs(refs) do
  local own, full = left(ref, now)
  if i == bound or bound == 0 and own < remaining then
    remaining, narrow = own, i
  end
  reset = math.max(reset, full)
end
remaining = math.floor(remaining / MILLION)
if wait > 0 then
  local limit = refs[bound].limit
  return { 0, wait, bound, remaining, reset, limit.burst, limit.kind == 'c' and 1 or 0 }
end
reply[2], reply[3], reply[4] = remaining, reset, refs[narrow].limit.burst
return reply
