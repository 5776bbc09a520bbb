-- define.lua: puts definitions of limits in force.
-- uses: definition_layers
-- KEYS  1-4 see `definition_layers.lua`
--       then per name or key: state, entries, keys of the name with a definition of their own
-- ARGV  1   now (us), or '' for the server's clock
--       2   'code': defaults of the code, or '' for those that the code does not have
--           | 'set': set at run time
--           | 'unset': what was set is removed; with the default of the code, or ''. If neither it nor a weight was set, and
--             the code has no default, what other code has registered is removed
--           | 'windows': new windows for definitions in force whose calendars have run out
--       3   for how long (us) it is set; 0 for ever
--       4   about: JSON, who does it and why
--       then per name or key: name, field, second part of a definition packed by
--       `celery_throttle/store/definitions.py`, or ''
-- Reply {1, index, ...}    of those that were in force and have changed
--       {0, index}    'set' would give slots to this one, or take them away: nothing was done. Workers know from the
--                     code whether a task has a slot to release
--
-- Weights are in the same hash, see `set_weight.lua`; they stay as they are. The state of each given name or key is
-- converted at once. Keys of a name that have no definition of their own may be many: their states are converted when
-- they are read, by the times that the definition holds.

local mode, lasts, about = ARGV[2], tonumber(ARGV[3]), ARGV[4]

local function text_of(packed, from)
  return packed and definition_tail()(packed, from).text or ''
end

local function is_set(packed)
  local origin = packed and string.byte(packed)
  return origin == SET or origin == BOUNDED_ORIGIN
end

local function put_code(requirement)
  local second_part = requirement.packed .. pack_tail(0, about, '')
  local own = redis.call('HGET', KEYS[1], requirement.field)
  redis.call('HSET', KEYS[2], 'code ' .. requirement.field, second_part)
  if is_set(own) then
    renew_below(requirement)
  elseif not own or string.byte(own) ~= RULES then
    local changed = put_in_force(requirement, CODE, second_part)
    if changed then
      record_change('code', requirement.field, text_of(own, FIRST_LIMIT), text_of(second_part, FIRST_IN_SECOND_PART),
                    about)
    end
    return changed
  end
end

local function set(requirement)
  local old = definition_of(requirement)
  local ends, below = 0, ''
  if lasts > 0 then
    local origin, second_part = definition_below(requirement.field)
    ends, below = now + lasts, origin and string.char(origin) .. second_part or ''
  end
  local second_part = requirement.packed .. pack_tail(ends, about, below)
  record_change('set', requirement.field, text_of(old, FIRST_LIMIT), text_of(second_part, FIRST_IN_SECOND_PART), about,
                ends)
  return put_in_force(requirement, lasts > 0 and BOUNDED_ORIGIN or SET, second_part)
end

local function unset(requirement)
  local old, own = definition_of(requirement)
  if requirement.packed ~= '' and redis.call('HEXISTS', KEYS[2], 'code ' .. requirement.field) == 0 then
    redis.call('HSET', KEYS[2], 'code ' .. requirement.field, requirement.packed .. pack_tail(0, about, ''))
  end
  local is_stale = own and string.byte(own) == CODE and requirement.packed == ''
      and redis.call('HEXISTS', KEYS[1], 'weight ' .. requirement.field) == 0
  if is_stale then
    redis.call('HDEL', KEYS[2], 'code ' .. requirement.field)
  end
  local changed = put_below_in_force(requirement)
  if is_set(own) or is_stale then
    record_change('unset', requirement.field, text_of(old, FIRST_LIMIT),
                  text_of(definition_of(requirement), FIRST_LIMIT), about)
  end
  return changed
end

-- Another definition may have been put in force since the windows were computed.
local function put_windows(requirement)
  local own = redis.call('HGET', KEYS[1], requirement.field)
  local tail = own and definition_tail()(own, FIRST_LIMIT)
  if own and tail.text == text_of(requirement.packed, FIRST_IN_SECOND_PART) then
    local second_part = requirement.packed .. join_tail(tail.ends, tail.at, tail.about, tail.below)
    return put_in_force(requirement, string.byte(own), second_part)
  end
end

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', KEYS[2], '')
local requirements = {}
for i = 1, (#KEYS - 4) / 3 do
  local key, arg = 3 * i + 2, 3 * i + 2
  local requirement = { index = i, name = ARGV[arg], field = ARGV[arg + 1], packed = ARGV[arg + 2], state = KEYS[key],
                        entries = KEYS[key + 1], own_keys = KEYS[key + 2], has_key = ARGV[arg] ~= ARGV[arg + 1], pause = 0 }
  local old = definition_of(requirement)
  local parse = definition_limits().parse
  if mode == 'set' and old and parse(old, FIRST_LIMIT).has_slots
      ~= parse(requirement.packed, FIRST_IN_SECOND_PART).has_slots then
    return { 0, i }
  end
  requirements[i] = requirement
end
local change = { code = put_code, set = set, unset = unset, windows = put_windows }
local reply = { 1 }
for i, requirement in ipairs(requirements) do
  local has_ended = write_end(requirement)
  local has_changed = (mode ~= 'code' or requirement.packed ~= '') and change[mode](requirement)
  if has_ended or has_changed then
    reply[#reply + 1] = i
  end
end
return reply
