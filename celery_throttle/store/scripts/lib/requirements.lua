-- requirements.lua: reads requirements from the keys and arguments of a call, and their limits and states.
-- A requirement is a limit, a key of it or none, and a cost. It is a table:
--   name        of the limit
--   state       key of its state
--   entries     key of what the algorithm keeps besides, see `sliding_log.lua` and `slots.lua`
--   has_key     whether it has a key
--   cost        millionths of a unit to take of each of its limits
-- `load_limits` adds
--   limits      the limits of its definition, all of which have to allow the cost
--   shadows     its shadow limits, see `shadow.lua`; nil if it has none
--   since, ends                      of its definition, see `definition.lua`; `ends` is false if it does not end
--   max_keys, max_waiting            of its definition, if it has one of them
--   key_cap     key of its key cap, if it has one
--   pause       microseconds from now until its pause ends; 0 if there is none
--   is_converted    true if its state had to be converted
--
-- A state is a string: since when (d, us) its definition is in force, then for each limit its part: tag (B), size of
-- the part (H), and what its algorithm keeps.
--
-- Values of one kind lie side by side in KEYS and ARGV, so that they are passed on without building a table:
-- KEYS  from `first_key` on for each requirement: state, pause of the name, pause of the key; then for each:
--       entries
-- ARGV  from `first_argument` on for each requirement: field of the key, field of the name; then for each: cost
--       (millionths)
-- If no requirement has a key, `keyed` is false, and the pauses and the fields of keys are left out.

-- Read a state, false if there is none. Returns false if it cannot be used as it is: see `convert_state.lua`.
local function read_state(requirement, state)
  local limits, from = requirement.limits, 9
  local usable = not state or struct.unpack('<d', state) == requirement.since
  for i = 1, #limits do
    local limit = limits[i]
    if not state then
      limit.algorithm.read(limit, false, 0)
    elseif usable and from < #state then
      local tag, size = struct.unpack('<BH', state, from)
      usable = tag == limit.tag and limit.algorithm.read(limit, state, from)
      from = from + size
    else
      return false
    end
  end
  return usable and (not state or from > #state)
end

local function write_state(requirement)
  local limits = requirement.limits
  local state, lasts = limits[1].algorithm.write(limits[1])
  for i = 2, #limits do
    local part, longer = limits[i].algorithm.write(limits[i])
    state, lasts = state .. part, math.max(lasts, longer)
  end
  redis.call('SET', requirement.state, struct.pack('<d', requirement.since) .. state, 'PX', expiry_ms(lasts))
  if requirement.key_cap then
    key_cap().note_use(requirement)
  end
end

-- Load the limits, states and pauses of requirements.
--   definitions    records in the hash of definitions, `fields` values for each requirement: for its key, if
--                  any requirement has a key, and for its name
--   values         `keys` values for each requirement: its state, the pause of its name, and, if any
--                  requirement has a key, the pause of its key
--   names          the keys of these values, from names[first] on
-- Returns nil, or the index of the first requirement that is not defined, or whose calendar has no window left.
-- Writes a state or a pause only if the clock was set back.
local function load_limits(requirements, definitions, fields, values, keys, names, first)
  for i = 1, #requirements do
    local requirement = requirements[i]
    local packed = definitions[fields * (i - 1) + 1] or definitions[fields * i]
    if not packed and requirement.name == FAN_OUT_NAME then
      packed = string.rep('\0', FIRST_LIMIT - 1) -- no limits: only its pause counts
    elseif not packed then
      return i
    end
    local since, ends, max_keys, max_waiting, count, shadows = struct.unpack(DECISIVE_HEAD, packed, SINCE_AT)
    if ends > 0 and ends <= now then
      packed = next_record()(packed, definitions[fields * i])
      if not packed then
        return i
      end
      since, ends, max_keys, max_waiting, count, shadows = struct.unpack(DECISIVE_HEAD, packed, SINCE_AT)
    end
    requirement.since, requirement.ends = since, ends > 0 and ends
    if max_keys > 0 or max_waiting > 0 then
      requirement.max_keys, requirement.max_waiting = max_keys, max_waiting
    end
    local limits, limit, from = { false }, nil, FIRST_LIMIT
    for n = 1, count do
      limit, from = parse_limit(packed, from, requirement)
      limits[n] = limit
      if limit.tag == FIXED_WINDOW and limit.algorithm.is_expired(limit) then
        return i
      elseif limit.tag == SLIDING_LOG then
        -- Each log has a zset of its own. The one without a number is that of slots.
        limit.entries = requirement.entries .. '+' .. n
      end
    end
    limits[1] = limits[1] or nil
    requirement.limits = limits
    for n = 1, shadows do
      requirements.has_shadows, requirement.shadows = true, requirement.shadows or {}
      limit, from = parse_limit(packed, from, requirement)
      limit.entries, requirement.shadows[n] = requirement.entries .. '+shadow' .. n, limit
      if limit.tag == FIXED_WINDOW and limit.algorithm.is_expired(limit) then
        return i
      end
    end
    if max_keys > 0 and requirement.has_key then
      requirement.key_cap = string.sub(packed, from, struct.unpack('<I', packed, TEXT_AT) - 1)
    end
    local value = keys * (i - 1) + 1
    local state, pause, key_pause = values[value], values[value + 1], values[keys * i]
    if not read_state(requirement, state) or not state and now < struct.unpack('<d', packed, DRAINED_AT) then
      convert_state()(requirement, state, struct.unpack('<dd', packed, OLD_SINCE_AT))
    end
    if pause or key_pause then
      local name = first + value - 1
      requirement.pause = math.max(requirement.pause, pause_left(names[name + 1], pause),
                                   pause_left(names[name + keys - 1], key_pause))
    end
  end
end

-- Returns the requirements; and nil, or the index of the first that is not defined, see `load_limits`.
local function read_requirements(count, first_key, first_argument, keyed)
  local requirements = {}
  local keys, fields = keyed and 3 or 2, keyed and 2 or 1
  local entries, cost = first_key + keys * count - 1, first_argument + fields * count - 1
  for i = 1, count do
    requirements[i] = {
      name = ARGV[first_argument + fields * i - 1], state = KEYS[first_key + keys * (i - 1)], entries = KEYS[entries + i],
      cost = tonumber(ARGV[cost + i]),
      has_key = keyed and ARGV[first_argument + 2 * i - 2] ~= ARGV[first_argument + 2 * i - 1],
      pause = 0, limits = false, since = 0, ends = false,
    }
  end
  local undefined = load_limits(requirements, read_many('HMGET', KEYS[1], ARGV, first_argument, cost), fields,
                                read_many('MGET', nil, KEYS, first_key, entries), keys, KEYS, first_key)
  return requirements, undefined
end
