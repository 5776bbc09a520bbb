-- change_definition.lua: changes layers of definitions, see `definition_record.lua`.
-- uses: clock, definition, load_limits, changes, list_definition
-- uses rarely: definition_record
-- KEYS  1   hash: records of limits and keys, by field; weights, see `weights.lua`
--       2   hash: the rules file, see `apply_rules.lua`
--       3   set: names of limits
--       4   stream: changes, see `changes.lua`
-- A requirement is that of `requirements.lua`, and has besides
--   field       of the name or key in the hash of definitions
--   own_keys    zset: keys of the name with a definition or weight of their own
-- `open_record` adds
--   record      in force: of the key, or else of the name; false if there is none
--   layers      of its own record; empty if it has none
--   has_record  whether it has one

local records = definition_record()

-- Arguments of a definition, from `first` on: numbers, text, identity, '1' if it has slots. Nil if the numbers are ''.
local DEFINITION_ARGUMENTS = 4

local function read_definition(first, about, ends)
  if ARGV[first] ~= '' then
    return { numbers = ARGV[first], text = ARGV[first + 1], identity = ARGV[first + 2],
             has_slots = ARGV[first + 3] == '1', at = now, about = about, ends = ends }
  end
end

local function text_of(definition)
  return definition and definition.text or ''
end

-- The record in force, of the key or else of the name, false if there is none; and the stored record of the key.
local function find_record(requirement)
  local found = redis.call('HMGET', KEYS[1], requirement.field, requirement.name)
  local own = found[1] and records.in_force(found[1], found[2])
  return own or found[2] and records.in_force(found[2], false), found[1]
end

-- The definition in force; nil if there is none.
local function definition_of(requirement)
  local record = find_record(requirement)
  return record and records.definition(record) or nil
end

-- Convert the stored state of a requirement to a record. `since` is given if that was in force before, but not for this
-- state.
local function convert_stored_state(requirement, record, since)
  local state = redis.call('GET', requirement.state)
  if state then
    local undefined = load_limits({ requirement }, { record }, 1, { state, false, false }, 3, {}, 1)
    requirement.since = since or requirement.since
    if not undefined and (requirement.is_converted or since) then
      write_state(requirement)
    end
  end
end

-- Remove the record of a requirement that has no layer left.
local function remove_record(requirement)
  redis.call('HDEL', KEYS[1], requirement.field)
  list_definition(requirement)
  local old, default = requirement.record, find_record(requirement)
  requirement.record = default
  if not (old and default) then
    return
  end
  local since, default_since = records.since(old), records.since(default)
  if since ~= default_since then
    -- What is in use counts by the limits of the name from now on, or from the end on, not since these are in force.
    local is_default = records.definition(old).identity == records.definition(default).identity
    convert_stored_state(requirement, is_default and old or records.with_times(default, now, since), default_since)
  end
end

-- Put the layers of a requirement in force. Returns whether other limits are in force; nil if there were none before.
local function put_in_force(requirement)
  local old, had_record = requirement.record, requirement.has_record
  local top = records.top(requirement.layers)
  requirement.has_record = top ~= nil
  if not top then
    remove_record(requirement)
    return had_record or nil
  end
  local since, old_since, has_changed = now, now, nil
  if old then
    has_changed = records.definition(old).identity ~= top.identity
    if has_changed then
      old_since = records.since(old)
    else
      since, old_since = records.since(old), records.old_since(old) -- the same limits: their states need no conversion
    end
  end
  requirement.record = records.pack(requirement.layers, since, old_since)
  redis.call('HSET', KEYS[1], requirement.field, requirement.record)
  list_definition(requirement)
  if old then
    convert_stored_state(requirement, requirement.record)
  end
  return has_changed
end

-- Read the record of a requirement. If a definition has ended by itself, write down what follows it. Returns whether
-- one has.
local function open_record(requirement)
  local record, own = find_record(requirement)
  requirement.record, requirement.has_record = record, own and true or false
  requirement.layers = own and records.layers(own) or {}
  local set = requirement.layers.set
  if not set or set.ends == 0 or set.ends > now then
    return false
  end
  requirement.layers.set = nil
  record_change('end', requirement.field, set.text, record and records.text(record) or '', set.about)
  put_in_force(requirement)
  return true
end

-- Whether a definition would give slots to a requirement, or take them away. Workers know from the code whether a task
-- has a slot to release.
local function switches_kind(requirement, definition)
  local old = definition_of(requirement)
  return old and definition and old.has_slots ~= definition.has_slots
end
