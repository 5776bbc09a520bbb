-- turn.lua: decide, or tell a task that waits at the broker when its turn is.
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
--       {'crowded', index, keys, wait (us)}      as many keys as may be are in use; see `crowd.lua`
--       {'unknown', index, now (us)}    not defined, or the windows of a calendar have run out
-- Nobody is told when a pause is lifted. So a task that waits for its end comes again before, now and then.
-- Turns of a limit are a string of two times (us): that of the last task, and of the last one that
-- came in vain.

local given = ARGV[1]
local now, mine, ahead = clock(given), tonumber(ARGV[2]), tonumber(ARGV[3])
local about, costs = { limits = {} }, {}
for i = 1, (#KEYS - 1) / 6 do
  local key, arg = 6 * i - 4, 3 * i + 5
  about.limits[i] = { ARGV[arg], ARGV[arg + 1], KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3],
                      false, false, KEYS[key + 4] }
  costs[i] = tonumber(ARGV[arg + 2])
end
if mine > now + ahead then
  return { 'wait', mine - now, mine, 1, mine - now }
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
local turns, behind = {}, 0
for i = 1, #refs do
  local told = redis.call('GET', KEYS[6 * i + 1])
  turns[i] = told and { struct.unpack('<dd', told) } or { 0, 0 }
  -- Nobody overtakes those that wait.
  behind = math.max(behind, turns[i][came])
end
local free = mine > 0 and wait <= (refs.held and 0 or ahead) or wait == 0 and behind <= now
if free and ARGV[7] == '1' then
  take(refs, now, now + wait, given)
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
  local last = math.max(turns[i][1], turns[i][2]) - now
  redis.call('SET', KEYS[6 * i + 1], struct.pack('<dd', turns[i][1], turns[i][2]),
             'PX', expiry(last, given))
end
return { 'wait', turn - now, turn, bound, expected }
