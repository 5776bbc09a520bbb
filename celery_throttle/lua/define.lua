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
-- Reply {1}, or {0, index} of one to which 'set' would give slots, or take them from: nothing was done,
--       since workers know from the code whether there is a slot to give back.
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

local function put(ref, origin)
  local since, old_since = now, now
  if ref.old then
    local _, before, older = struct.unpack(HEAD, ref.old)
    old_since = before
    if is_same(parts_of(ref.old, PACKED), parts_of(ref.packed, 1)) then
      -- The same limits: what is in use under them needs no conversion.
      since, old_since = before, older
    end
  end
  redis.call('HSET', KEYS[1], ref.field, struct.pack('<Bdd', origin, since, old_since) .. ref.packed)
end

local function convert_state(ref)
  local state = ref.old and redis.call('GET', ref.state)
  local packed = in_force(ref.name, ref.field)
  if state and packed then
    look({ ref }, { packed }, 1, { state, false, false }, 3, now, given)
    if ref.adopted then
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
  refs[i] = { name = name, field = field, packed = packed, old = old, state = KEYS[2 * i],
              entries = KEYS[2 * i + 1], has_key = field ~= name, paused = 0 }
end
for _, ref in ipairs(refs) do
  local own = redis.call('HGET', KEYS[1], ref.field)
  local origin = own and string.byte(own)
  if mode == 'drop' then
    redis.call('HDEL', KEYS[1], ref.field)
    convert_state(ref)
  elseif mode == 'windows' then
    -- Somebody may have defined another limit since these were asked for.
    if own and parts_of(own, PACKED).text == parts_of(ref.packed, 1).text then
      put(ref, origin)
    end
  elseif mode ~= 'code' or origin ~= SET then
    put(ref, mode == 'set' and SET or CODE)
    convert_state(ref)
  end
end
return { 1 }
