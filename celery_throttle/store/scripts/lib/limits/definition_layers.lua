-- definition_layers.lua: the layers of definitions, and which of them is in force.
-- uses: clock, definition, load_limits, changes
-- uses rarely: ended_definition, definition_tail, definition_limits
-- Of a name or a key the definition that was set at run time is in force, else that of the rules file, else that of the
-- code. The hash of layers keeps those of the rules ('rules ' and the field) and of the code ('code ' and the field)
-- as second parts of definitions, see `definition.lua`; the hash of definitions has what is in force. `apply_rules.lua`
-- and `set_weight.lua` name the other fields of layers.
-- KEYS  1   hash: definitions of limits in force
--       2   hash: layers
--       3   set: names of limits
--       4   stream: changes, see `changes.lua`
-- A requirement is that of `requirements.lua`, and has besides
--   field       of the name or key in the hash of definitions
--   own_keys    zset: keys of the name with a definition or weight of their own

local CODE, RULES, SET = 99, 114, 115

-- The definition in force of a requirement: its own, or that of its name. Also whether it is its own.
local function definition_of(requirement)
  local found = redis.call('HMGET', KEYS[1], requirement.field, requirement.name)
  local own, of_name = found[1], found[2]
  own = own and ended_definition()(own, of_name)
  of_name = of_name and ended_definition()(of_name, of_name)
  return own or of_name, own and found[1]
end

-- Origin and second part of what the rules or the code define; nil if neither does.
local function definition_below(field)
  local found = redis.call('HMGET', KEYS[2], 'rules ' .. field, 'code ' .. field)
  if found[1] then
    return RULES, found[1]
  elseif found[2] then
    return CODE, found[2]
  end
end

-- The tail of a definition, which follows its limits; see `definition_tail.lua`.
local function join_tail(ends, at, about, below)
  return '\0' .. format_integer(ends) .. ' ' .. at .. ' ' .. about .. '\0' .. below
end

local function pack_tail(ends, about, below)
  return join_tail(ends, format_integer(now), about, below)
end

-- The first part of a definition that is in force from now on, after an old one or nil.
local function pack_first_part(origin, old)
  local since, old_since = now, now
  if old then
    since, old_since = select(2, struct.unpack(HEAD, old))
  end
  return struct.pack('<Bddd', origin, now, since, old_since)
end

-- Convert the stored state of a requirement to a definition. `since` is given if that was in force before, but not for
-- this state.
local function convert_stored_state(requirement, packed, since)
  local state = packed and redis.call('GET', requirement.state)
  if state then
    local undefined = load_limits({ requirement }, { packed }, 1, { state, false, false }, 3, {}, 1)
    requirement.since = since or requirement.since
    if not undefined and (requirement.is_converted or since) then
      write_state(requirement)
    end
  end
end

-- List the requirement among what has a definition, or no longer.
local function list_definition(requirement, is_defined)
  local set, member = KEYS[3], requirement.name
  if requirement.field ~= requirement.name then
    set, member = requirement.own_keys, string.sub(requirement.field, #requirement.name + 2)
    is_defined = is_defined or redis.call('HEXISTS', KEYS[1], 'weight ' .. requirement.field) == 1
    redis.call(is_defined and 'ZADD' or 'ZREM', set, unpack(is_defined and { 0, member } or { member }))
  else
    redis.call(is_defined and 'SADD' or 'SREM', set, member)
  end
end

-- Put the second part of a definition in force, or remove the requirement's own without one. Returns whether other
-- limits are in force now; nil if there were none before.
local function put_in_force(requirement, origin, second_part)
  local old, own = definition_of(requirement)
  if not second_part then
    redis.call('HDEL', KEYS[1], requirement.field)
    list_definition(requirement, false)
    local default = definition_of(requirement)
    local since = default and select(2, struct.unpack(HEAD, default))
    if own and default and since ~= select(2, struct.unpack(HEAD, old)) then
      -- What is in use counts by the limits of the name from now on, not since these are in force.
      local packed = pack_first_part(string.byte(default), old) .. string.sub(default, SECOND_PART)
      convert_stored_state(requirement, packed, since)
    end
    return own and true or nil
  end
  local first_part = pack_first_part(origin, old or nil)
  local changed = nil
  if old then
    changed = not definition_limits().are_same(old, FIRST_LIMIT, second_part, FIRST_IN_SECOND_PART)
  end
  if changed == false then
    -- The same limits: their states need no conversion.
    first_part = string.char(origin) .. string.sub(old, 2, SECOND_PART - 1)
  end
  redis.call('HSET', KEYS[1], requirement.field, first_part .. second_part)
  list_definition(requirement, true)
  if old then
    convert_stored_state(requirement, first_part .. second_part)
  end
  return changed
end

-- Put in force what the rules or the code define.
local function put_below_in_force(requirement)
  return put_in_force(requirement, definition_below(requirement.field))
end

-- If the requirement has a definition of its own that has ended by itself, write down what follows it. Returns whether
-- other limits are in force.
local function write_end(requirement)
  local own = redis.call('HGET', KEYS[1], requirement.field)
  if own and string.byte(own) == BOUNDED_ORIGIN then
    local tail = definition_tail()(own, FIRST_LIMIT)
    if tail.ends <= now then
      local followed = definition_of(requirement)
      record_change('end', requirement.field, tail.text, followed and definition_tail()(followed, FIRST_LIMIT).text or '',
                    tail.about)
      put_below_in_force(requirement)
      return true
    end
  end
  return false
end

-- Let a definition that ends by itself be followed by what the rules or the code define now.
local function renew_below(requirement)
  local own = redis.call('HGET', KEYS[1], requirement.field)
  local tail = definition_tail()(own, FIRST_LIMIT)
  if tail.ends > 0 then
    local origin, below = definition_below(requirement.field)
    local head = string.sub(own, 1, #own - #tail.below)
    redis.call('HSET', KEYS[1], requirement.field, head .. (origin and string.char(origin) .. below or ''))
  end
end
