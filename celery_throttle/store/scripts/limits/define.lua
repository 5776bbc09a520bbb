-- define.lua: puts definitions of limits in force.
-- uses: clock, definition, parameter, load_limits
-- KEYS  1   hash: definitions of limits
--       then per name or key: state, entries
-- ARGV  1   now (us), or '' for the server's clock
--       2   'code': defaults of the code; they never replace a definition set at run time
--           | 'reset': the default of the code again | 'set': set at run time | 'drop': removed
--           | 'windows': new windows for definitions in force whose calendars have run out
--       then per name or key: name, field, definition packed by `celery_throttle/store/definitions.py`, '' for 'drop'
-- Reply {1, index, ...}    of those that were in force and have changed
--       {0, index}    'set' would give slots to this one, or take them away: nothing was done. Workers know from the
--                     code whether a task has a slot to release
--
-- Weights are in the same hash, see `set_weight.lua`; they stay as they are. The state of each given name or key is
-- converted at once. Keys of a name that have no definition of their own may be many: their states are converted when
-- they are read, by the times that the definition holds.

local mode = ARGV[2]
local CODE, SET = string.byte('c'), string.byte('s')

local function definition_of(name, field)
  local found = redis.call('HMGET', KEYS[1], field, name)
  return found[1] or found[2]
end

-- Parse what `definitions.py` packed; it begins at a position of a definition. Returns the numbers and the text of
-- the limits, and whether one has a calendar, and one slots.
local function parse_definition(packed, position)
  local _, _, count = struct.unpack('<ddB', packed, position)
  local start = position + FIRST_LIMIT - SECOND_PART
  local from, limit, has_calendar, has_slots = start, nil, false, false
  for _ = 1, count do
    limit, from = parse_limit(packed, from, {})
    has_calendar = has_calendar or limit.tag == FIXED_WINDOW and parameter(limit, 1) == 0
    has_slots = has_slots or limit.tag == SLOTS
  end
  return { numbers = string.sub(packed, start, from - 1), text = string.match(packed, '^%Z*', from),
           has_calendar = has_calendar, has_slots = has_slots }
end

-- The text of limits without max-keys, max-waiting and the outage policy.
local function admission_text(text)
  return (string.gsub(string.gsub(text, ' max%-%a+ %d+', ''), ' outage %a+', ''))
end

-- Whether two definitions admit the same, however their rates are written. The known windows of a calendar depend on
-- when they were computed, so its text is compared.
local function is_same(one, other)
  if one.has_calendar or other.has_calendar then
    return admission_text(one.text) == admission_text(other.text)
  end
  return one.numbers == other.numbers
end

local function since_of(packed)
  return (select(2, struct.unpack(HEAD, packed)))
end

-- The first part of a definition that is in force from now on, after an old one or nil.
local function pack_first_part(origin, old)
  local since, old_since = now, now
  if old then
    since, old_since = select(2, struct.unpack(HEAD, old))
  end
  return struct.pack('<Bddd', origin, now, since, old_since)
end

local reply = { 1 }

local function put_definition(requirement, origin)
  local old, packed = requirement.old, requirement.packed
  local first_part = pack_first_part(origin, old)
  if old and is_same(parse_definition(old, SECOND_PART), parse_definition(packed, 1)) then
    -- The same limits: their states need no conversion.
    first_part = string.char(origin) .. string.sub(old, 2, SECOND_PART - 1)
  elseif old then
    reply[#reply + 1] = requirement.index
  end
  redis.call('HSET', KEYS[1], requirement.field, first_part .. packed)
end

-- Convert the state of a requirement to a definition. `since` is given if that was in force before, but not for this
-- state.
local function convert_stored_state(requirement, packed, since)
  local state = requirement.old and packed and redis.call('GET', requirement.state)
  if state then
    local undefined = load_limits({ requirement }, { packed }, 1, { state, false, false }, 3, {}, 1)
    requirement.since = since or requirement.since
    if not undefined and (requirement.is_converted or since) then
      write_state(requirement)
    end
  end
end

local requirements = {}
for i = 1, (#KEYS - 1) / 2 do
  local name, field, packed = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local old = definition_of(name, field)
  if mode == 'set' and old
      and parse_definition(old, SECOND_PART).has_slots ~= parse_definition(packed, 1).has_slots then
    return { 0, i }
  end
  requirements[i] = { index = i, name = name, field = field, packed = packed, old = old, state = KEYS[2 * i],
                      entries = KEYS[2 * i + 1], has_key = field ~= name, pause = 0 }
end
for _, requirement in ipairs(requirements) do
  local name, field = requirement.name, requirement.field
  local own = redis.call('HGET', KEYS[1], field)
  local origin = own and string.byte(own)
  if mode == 'drop' then
    redis.call('HDEL', KEYS[1], field)
    local default = definition_of(name, field)
    if own and default and since_of(own) ~= since_of(default) then
      -- What is in use counts by the limits of the name from now on, not since these are in force.
      local packed = pack_first_part(origin, own) .. string.sub(default, SECOND_PART)
      convert_stored_state(requirement, packed, since_of(default))
    end
  elseif mode == 'windows' then
    -- Another definition may have been put in force since the windows were computed.
    if own and parse_definition(own, SECOND_PART).text == parse_definition(requirement.packed, 1).text then
      put_definition(requirement, origin)
    end
  elseif mode ~= 'code' or origin ~= SET then
    put_definition(requirement, mode == 'set' and SET or CODE)
    convert_stored_state(requirement, definition_of(name, field))
  end
end
return reply
