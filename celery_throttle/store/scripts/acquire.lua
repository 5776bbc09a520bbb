-- acquire.lua: decide over any number of names and keys, all or nothing.
-- first: gcra_fast_path
-- uses: refs
--
-- KEYS  1            hash: definitions of limits
--       then for each ref: state, pause, pause of the key; then for each: entries; see `refs.lua`
-- ARGV  1            now (us), or '' for the server's clock
--       2            'take' | 'peek' | 'upto' (as much of the costs as there is) | 'reserve' | 'slot'
--       3            the longest delay (us) that is accepted, '' for any of a leaky-queue. Up to it, and
--                    FARTHEST, another limit may be booked ahead
--       then for each ref: field of the key, field of the name; then for each: cost (millionths)
--       then of 'slot': who takes it, and for how long (us) at first
-- Reply {1, remaining, reset (us), burst, delay (us), granted, ...}    allowed; and of 'reserve' and
--                      'slot' for each ref: since when (us) its limits are in force, how many, a mark
--                      (two numbers) for each
--       {0, wait (us), index that binds, remaining, reset (us), burst, sort, paused (us)}    refused. The
--                      sort is 1 if slots bind, which may be given back before; 2 if the delay is too long,
--                      which does not get better by coming later. It is paused for so long; `gcra_fast_path.lua`
--                      leaves that out
--       {-1, index, burst}       can never pass
--       {-2, index, now (us)}    not defined, or the windows of a calendar have run out
--       {-3, index}              has slots, which only 'slot' takes
--       {-4, index, max-keys}    more keys of a name than may ever be in use
-- A refusal writes nothing.

local given, mode = ARGV[1], ARGV[2]
-- Three keys and two arguments a ref if none has a key, else four and three.
local others = mode == 'slot' and 5 or 3
local now, keyed = clock(given), 3 * (#ARGV - others) ~= 2 * (#KEYS - 1)
local count = (#KEYS - 1) / (keyed and 4 or 3)
local refs, unknown = read_refs(count, 2, 4, keyed, now, given)
if unknown then
  return { -2, unknown, whole(now) }
end
local full, till = full_crowd(refs, now)
local paused = full > 0 and refs[full].paused
if till < 0 then
  return { -4, full, refs[full].max_keys }
elseif full > 0 then
  -- A key for which there is no room waits as one that is paused.
  refs[full].paused = math.max(refs[full].paused, till)
end

local delay, granted, slots = 0, refs[1].cost, {}
if mode == 'upto' then
  local wanted = granted
  for i = 1, count do
    granted = math.min(granted, (left(refs[i], now, true)))
  end
  if wanted % MILLION == 0 then
    granted = granted - granted % MILLION
  end
  if wanted == 0 then
    mode = 'peek'
  end
  for i = 1, count do
    for _, limit in ipairs(refs[i].limits) do
      -- Nothing to be had is a refusal of one unit.
      limit.cost = granted > 0 and granted or math.min(wanted, MILLION)
    end
  end
end
for i = 1, count do
  local limits = refs[i].limits
  for place = 1, #limits do
    local limit = limits[place]
    local tag = limit.tag
    if tag == LEAKY_QUEUE then
      limit.longest = tonumber(ARGV[3])
      delay = math.max(delay, algorithm_of(tag, true).delay(limit))
    elseif tag == SLOTS and mode == 'slot' then
      -- It is held from the time at which its holder begins.
      slots[#slots + 1] = limit
      limit.holder, limit.lease = ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])
    elseif tag == SLOTS and mode ~= 'peek' then
      return { -3, i }
    end
  end
end

for _, limit in ipairs(slots) do
  limit.lease = limit.lease + delay
end

local wait, bound, place = decide(refs, now)
if wait < 0 then
  return { -1, bound, refs[bound].limits[place].burst }
end
-- Who waits wakes up late. So what is free in a moment is taken for then, and no slot goes by unused.
local ahead = math.min(FARTHEST, tonumber(ARGV[3]) or 0)
if mode == 'peek' or mode == 'upto' or delay > 0 or refs.held or full > 0 then
  ahead = 0
end
if wait > 0 and wait <= ahead then
  for _, limit in ipairs(slots) do
    limit.lease = limit.lease + wait
  end
  take(refs, now, now + wait, given)
  delay, wait, bound = wait, 0, 0
elseif wait == 0 and mode ~= 'peek' then
  take(refs, now, now, given)
end
local remaining, reset, narrow = math.huge, 0, nil
for i = 1, count do
  local own, full, limit = left(refs[i], now)
  if bound == 0 and own < remaining then
    remaining, narrow = own, limit
  end
  if full > reset then
    reset = full
  end
end
if bound > 0 then
  narrow = refs[bound].limits[place]
  remaining = refs[bound].paused > 0 and 0 or narrow.algorithm.left(narrow, now)
end
remaining = math.floor(remaining / MILLION)
if wait > 0 then
  local longest = tonumber(ARGV[3])
  local slots_bind = narrow.tag == SLOTS and wait > refs[bound].paused
  local sort = slots_bind and 1 or longest and delay > longest and 2 or 0
  return { 0, wait, bound, remaining, reset, narrow.burst, sort,
           bound == full and paused or refs[bound].paused }
end
local reply = { 1, remaining, reset, narrow.burst, delay, granted }
if mode == 'reserve' or mode == 'slot' then
  for i = 1, count do
    reply[#reply + 1], reply[#reply + 2] = refs[i].since, #refs[i].limits
    for _, limit in ipairs(refs[i].limits) do
      reply[#reply + 1], reply[#reply + 2] = algorithm_of(limit.tag, true).mark(limit, now)
    end
  end
end
return reply
