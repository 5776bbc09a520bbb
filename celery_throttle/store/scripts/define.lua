-- define.lua: put definitions of limits in force.
-- uses: decide
--
-- KEYS  1            hash: definitions of limits
--       then per name or key: state, entries
-- ARGV  1            now (us), or '' for the server's clock
--       2            'code' (defaults of the code: never replace one defined at run time)
--                    | 'reset' (the default of the code again) | 'set' (defined at run time) | 'drop'
--                    | 'windows' (the windows of calendars have run out: new ones for what is in force)
--       then per name or key: name, field, definition (packed by definitions.py; '' with 'drop')
-- Reply {1, index, ...}    of those that were in force and have changed
--       {0, index}    'set' would give slots to this one, or take them from it: nothing was done, since
--                     workers know from the code whether there is a slot to give back
--
-- Weights are in the same hash, see `set_weight.lua`; they stay as they are.
--
-- What is in use of the name or key itself is converted at once. The keys of a name that are not
-- defined themselves may be many: their states are converted when they are read, by what the
-- definition says of the one before it.

local given, mode = ARGV[1], ARGV[2]
local now = clock(given)

local function in_force(name, field)
  local found = redis.call('HMGET', KEYS[1], field, name)
  return found[1] or found[2]
end

-- What `definitions.py` packed of a definition: the limits as a table, their numbers, their text.
local function parts_of(packed, place)
  local _, _, count = struct.unpack('<ddB', packed, place)
  local limits, from = {}, place + FIRST - PACKED
  local start, calendar, slots = from, false, false
  for i = 1, count do
    limits[i], from = parse(packed, from, {})
    calendar = calendar or limits[i].tag == FIXED_WINDOW and number(limits[i], 1) == 0
    slots = slots or limits[i].tag == SLOTS
  end
  return { numbers = string.sub(packed, start, from - 1), text = string.match(packed, '^%Z*', from),
           calendar = calendar, slots = slots }
end

-- The text without what bounds keys and waiting tasks, and says what happens in an outage.
local function bare(text)
  return (string.gsub(string.gsub(text, ' max%-%a+ %d+', ''), ' outage %a+', ''))
end

-- Whether two definitions admit the same, however their rates are written. The windows of a calendar
-- that are known depend on when somebody looked.
local function is_same(one, other)
  if one.calendar or other.calendar then
    return bare(one.text) == bare(other.text)
  end
  return one.numbers == other.numbers
end

local function since_of(packed)
  return (select(2, struct.unpack(HEAD, packed)))
end

-- What stands in front of a definition that is in force from now on, after another.
local function front(origin, old)
  local since, old_since = now, now
  if old then
    since, old_since = select(2, struct.unpack(HEAD, old))
  end
  return struct.pack('<Bddd', origin, now, since, old_since)
end

local changed = { 1 }

local function put(ref, origin)
  local packed = front(origin, ref.old) .. ref.packed
  if ref.old and is_same(parts_of(ref.old, PACKED), parts_of(ref.packed, 1)) then
    -- The same limits: what is in use under them needs no conversion.
    packed = string.char(origin) .. string.sub(ref.old, 2, PACKED - 1) .. ref.packed
  elseif ref.old then
    changed[#changed + 1] = ref.index
  end
  redis.call('HSET', KEYS[1], ref.field, packed)
end

-- `since`: of a definition that was in force before, but not for this state.
local function convert_state(ref, packed, since)
  local state = ref.old and packed and redis.call('GET', ref.state)
  if state then
    local unknown = look({ ref }, { packed }, 1, { state, false, false }, 3, {}, 1, now, given)
    ref.since = since or ref.since
    if not unknown and (ref.adopted or since) then
      write(ref, now, given)
    end
  end
end

local CODE, SET = string.byte('c'), string.byte('s')
local refs = {}
for i = 1, (#KEYS - 1) / 2 do
  local name, field, packed = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local old = in_force(name, field)
  if mode == 'set' and old and parts_of(old, PACKED).slots ~= parts_of(packed, 1).slots then
    return { 0, i }
  end
  refs[i] = { index = i, name = name, field = field, packed = packed, old = old, state = KEYS[2 * i],
              entries = KEYS[2 * i + 1], has_key = field ~= name, paused = 0 }
end
for _, ref in ipairs(refs) do
  local own = redis.call('HGET', KEYS[1], ref.field)
  local origin = own and string.byte(own)
  if mode == 'drop' then
    redis.call('HDEL', KEYS[1], ref.field)
    local rest = in_force(ref.name, ref.field)
    if own and rest and since_of(own) ~= since_of(rest) then
      -- What is in use counts from now on by the limits of the name, not since these are in force.
      convert_state(ref, front(origin, own) .. string.sub(rest, PACKED), since_of(rest))
    end
  elseif mode == 'windows' then
    -- Somebody may have defined another limit since these were asked for.
    if own and parts_of(own, PACKED).text == parts_of(ref.packed, 1).text then
      put(ref, origin)
    end
  elseif mode ~= 'code' or origin ~= SET then
    put(ref, mode == 'set' and SET or CODE)
    convert_state(ref, in_force(ref.name, ref.field))
  end
end
return changed
