-- broker_wait.lua: decide, or tell a task that waits at the broker when its turn is.
-- uses: lines
--
-- Each task that is refused gets a time of its own, as far behind the one before it as the limit emits
-- units. These times only say when to ask again: what decides is the limit. A task that comes at its
-- time and is refused all the same, since somebody else took the unit, gets the next such time among
-- those it happened to, before all that have not had their turn.
--
-- KEYS  1   hash: definitions of limits
--       then per limit: state, entries, pause, pause of the key, waits, turns
-- ARGV  1   now (us), or '' for the server's clock
--       2   its turn (us) as it was told before, or 0
--       3   how far ahead (us) a start may be booked
--       4   longest wait accepted (us), -1 for any
--       5   who takes a slot, if there are any
--       6   how long (us) it is taken at first
--       7   '1' if it may run now, '0' if there is no process for it
--       then per limit: name, field, cost (millionths of a unit)
-- Reply {'admitted', starts in (us), entries and waits of each slot}
--       {'wait', wait (us), its turn (us), index that binds, expected wait (us)}
--       {'late', wait (us), index that binds, for how long (us) that is paused}    would wait too long:
--                                                nothing was taken
--       {'never', index, burst}                  the cost can never pass
--       {'crowded', index, keys, wait (us)}      as many keys as may be are in use; see `key_cap.lua`
--       {'unknown', index, now (us)}    not defined, or the windows of a calendar have run out
-- Nobody is told when a pause is lifted. So a task that waits for its end comes again before, now and then.
-- Turns of a limit are a string of four numbers: two times (us), that of the last task, and of the last one
-- that came in vain; when (us) they were written; and by how much (us) they were moved back in all, because
-- the clock was set back. A turn that is told is one by the clock before all of that.

local given = ARGV[1]
local now, mine, ahead = clock(given), tonumber(ARGV[2]), tonumber(ARGV[3])
local about, costs = { limits = {} }, {}
for i = 1, (#KEYS - 1) / 6 do
  local key, arg = 6 * i - 4, 3 * i + 5
  about.limits[i] = { ARGV[arg], ARGV[arg + 1], KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3],
                      false, false, KEYS[key + 4] }
  costs[i] = tonumber(ARGV[arg + 2])
end

-- The turns of each limit; those that were written by a later clock than now are moved back.
local function read_turns(name)
  local found = redis.call('GET', name)
  if not found then
    return { 0, 0, moved = 0 }
  end
  local last, vain = struct.unpack('<dd', found)
  local written, moved = now, 0
  if #found == 32 then
    written, moved = struct.unpack('<dd', found, 17)
  end
  local step = math.max(0, written - now)
  return { math.max(0, last - step), math.max(0, vain - step), moved = moved + step }
end

local turns = {}
for i = 1, #about.limits do
  turns[i] = read_turns(KEYS[6 * i + 1])
end

-- Keeps the turns of each limit, and that they were looked at now.
local function keep_turns()
  for i, own in ipairs(turns) do
    local lasts = math.max(own[1], own[2]) - now
    if lasts > 0 then
      redis.call('SET', KEYS[6 * i + 1], struct.pack('<dddd', own[1], own[2], now, own.moved),
                 'PX', expiry(lasts, given))
    end
  end
end

local moved = turns[1].moved
mine = mine > 0 and math.max(1, mine - moved) or 0
if mine > now + ahead then
  keep_turns()
  return { 'wait', mine - now, mine + moved, 1, mine - now }
end

local refs = refs_of(about, costs)
local unknown = look_at(KEYS[1], about, refs, now, given, ARGV[5], tonumber(ARGV[6]))
if unknown then
  return { 'unknown', unknown, whole(now) }
end
local wait, bound, place = decide(refs, now, true)
if wait < 0 then
  return { 'never', bound, refs[bound].limits[place].burst }
end

local full, till = full_crowd(refs, now)
if full > 0 and (mine == 0 or till < 0) then
  return { 'crowded', full, refs[full].max_keys, till }
elseif till > wait then
  wait, bound, place = till, full, 1
end

-- When a slot is given back nobody knows, so it is looked for now and then.
local LOOK, STEP = 1000000, 20000
if wait > LOOK and refs.held and refs[bound].paused < wait
    and refs[bound].limits[place].tag == SLOTS then
  wait = LOOK
end

-- How long (us) a task waits at most before it looks whether a pause was lifted.
local PAUSED = 60000000
local expected = wait
if bound > 0 and refs[bound].paused == wait then
  wait = math.min(wait, PAUSED)
end

local came = mine > 0 and 2 or 1
local behind = 0
for i = 1, #refs do
  -- Nobody overtakes those that wait.
  behind = math.max(behind, turns[i][came])
end
local free = mine > 0 and wait <= (refs.held and 0 or ahead) or wait == 0 and behind <= now
if free and ARGV[7] == '1' then
  take(refs, now, now + wait, given)
  keep_turns()
  return { 'admitted', wait, unpack(slots_of(refs, about)) }
end

-- Microseconds from one task of this cost to the next.
local function apart(ref)
  local longest = 0
  for _, limit in ipairs(ref.limits) do
    local own = limit.tag == SLOTS and STEP or math.ceil(limit.cost / MILLION * limit.p / limit.q)
    longest = math.max(longest, own)
  end
  return longest
end

local step = 0
for _, ref in ipairs(refs) do
  step = math.max(step, apart(ref))
end
local turn = math.max(now + wait, behind + step)
local longest = tonumber(ARGV[4])
expected, bound = math.max(expected, turn - now), math.max(1, bound)
if longest >= 0 and expected > longest then
  return { 'late', expected, bound, refs[bound].paused }
end
for i = 1, #refs do
  turns[i][came] = turn
end
keep_turns()
return { 'wait', turn - now, turn + moved, bound, expected }
