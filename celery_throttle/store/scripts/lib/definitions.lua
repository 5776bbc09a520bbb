-- definitions.lua: changes layers of definitions and weights, see `records.lua`, and notes each change.
-- KEYS  1   hash: definitions of limits and keys, by field; weights, by 'weight ' and field
--       2   hash: the rules file, see `apply_rules.lua`
--       3   set: names of limits
--       4   stream: the last 1,000 changes that people and files made to limits; an entry has the fields
--           at      when (us)
--           action  'define', 'undefine', 'end' (of a definition that ends by itself), 'code', 'rules', 'weight', 'pause',
--                   'resume', 'reset', or what else a command did
--           limit   field of the limit or key in the hash of definitions
--           old, new  the limits, the weight, or the microseconds of a pause, as text
--           about   JSON: who did it, and why
--           until   when (us) the definition or weight ends by itself; left out if it does not
--       5-7 heads of names: with a field behind them, of states and of entries; with a name behind it, of the zset of the
--           keys with a definition or weight of their own
--       8   hash: limits that are in other shards, see `shard_map.lua`
-- A requirement is that of `requirements.lua`, and has besides
--   field       of the name or key in the hash of definitions
--   own_keys    zset: keys of the name with a definition or weight of their own, by when (us) the first of them
--               ends, 0 if none does
-- `open_record` adds
--   record      in force: of the key, or else of the name; false if there is none
--   layers      of its own record; empty if it has none
--   has_record  whether it has one

-- How many changes are kept, and for how long (ms) after the last one: a year.
local CHANGES_KEPT, CHANGES_KEPT_MS = 1000, 31536000000

local function record_change(action, limit, old, new, about, ends)
  local entry = { 'at', format_integer(now), 'action', action, 'limit', limit, 'old', old, 'new', new, 'about', about }
  if ends and ends > 0 then
    entry[#entry + 1], entry[#entry + 2] = 'until', format_integer(ends)
  end
  redis.call('XADD', KEYS[4], 'MAXLEN', CHANGES_KEPT, '*', unpack(entry))
  redis.call('PEXPIRE', KEYS[4], CHANGES_KEPT_MS)
end

-- The weight set at run time, when (us) it ends, the weight of the rules file, and the weight in force; 0 for none.
local function read_weight(requirement)
  local text = redis.call('HGET', KEYS[1], 'weight ' .. requirement.field) or '0 0 0'
  local set, ends, rules = string.match(text, '^(%d+) (%d+) (%d+)$')
  return set, ends, rules, format_integer(weight_in_force(text) or 0)
end

-- When (us) the first definition of a layer ends, or the weight; 0 if none does.
local function first_end(requirement)
  local _, ends = read_weight(requirement)
  local first = tonumber(ends)
  for _, definition in pairs(requirement.layers) do
    if definition.ends > 0 and (first == 0 or definition.ends < first) then
      first = definition.ends
    end
  end
  return first
end

-- List a name or key that has a definition, or a key that has a weight of its own; remove others from the list.
local function list_definition(requirement)
  local name, field = requirement.name, requirement.field
  local is_listed = redis.call('HEXISTS', KEYS[1], field) == 1
  if field == name then
    redis.call(is_listed and 'SADD' or 'SREM', KEYS[3], name)
  elseif is_listed or redis.call('HEXISTS', KEYS[1], 'weight ' .. field) == 1 then
    redis.call('ZADD', requirement.own_keys, format_integer(first_end(requirement)), string.sub(field, #name + 2))
  else
    redis.call('ZREM', requirement.own_keys, string.sub(field, #name + 2))
  end
end

local function requirement_of(field)
  local name = string.match(field, '^[^:]+')
  return { name = name, field = field, state = KEYS[5] .. field, entries = KEYS[6] .. field,
           own_keys = KEYS[7] .. name, has_key = name ~= field, pause = 0 }
end

-- Read the requirements in the arguments from `first` on, each with its definition: field, numbers, text, identity, '1'
-- if it has slots. The definition is false if its numbers are ''.
local function parse_definitions(first, about, ends)
  local requirements, definitions = {}, {}
  for i = first, #ARGV, 5 do
    local n = #requirements + 1
    requirements[n], definitions[n] = requirement_of(ARGV[i]), ARGV[i + 1] ~= '' and {
      numbers = ARGV[i + 1], text = ARGV[i + 2], identity = ARGV[i + 3], has_slots = ARGV[i + 4] == '1',
      at = now, about = about, ends = ends,
    }
  end
  return requirements, definitions
end

local function text_of(definition)
  return definition and definition.text or ''
end

-- The record in force, of the key or else of the name, false if there is none; and the stored record of the key.
local function find_record(requirement)
  local found = redis.call('HMGET', KEYS[1], requirement.field, requirement.name)
  return record_in_force(found[1], found[2]), found[1]
end

-- The definition in force; nil if there is none.
local function definition_of(requirement)
  local record = find_record(requirement)
  return record and (definition_in(record)) or nil
end

-- Convert the stored state of a requirement to a record. `since` is given if that was in force before, but not for this
-- state.
local function convert_stored_state(requirement, record, since)
  local state = redis.call('GET', requirement.state)
  if state or since and now < struct.unpack('<d', record, DRAINED_AT) then
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
  local since, default_since = times_in(old), times_in(default)
  if since ~= default_since then
    -- What is in use counts by the limits of the name from now on, or from the end on, not since these are in force.
    local is_default = definition_in(old).identity == definition_in(default).identity
    local record = is_default and old or with_times(default, now, since, used_up_after(old, now))
    convert_stored_state(requirement, record, default_since)
  end
end

-- Put the layers of a requirement in force. Returns whether other limits are in force; nil if there were none before.
local function put_in_force(requirement)
  local old, had_record, code = requirement.record, requirement.has_record, requirement.layers.code
  if code and code.ends > 0 and code.ends <= now then
    requirement.layers.code = nil
  end
  local top = top_of(requirement.layers)
  requirement.has_record = top ~= nil
  if not top then
    remove_record(requirement)
    return had_record or nil
  end
  local since, old_since, has_changed = now, now, nil
  local used_up = not old and used_up_since(KEYS[8], requirement.name) or 0
  if old then
    since, old_since, used_up = times_in(old)
    has_changed = definition_in(old).identity ~= top.identity
    if has_changed then -- otherwise the states need no conversion
      since, old_since, used_up = now, since, used_up_after(old, now)
    end
  end
  requirement.record = pack_record(requirement.layers, since, old_since, used_up)
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
  requirement.layers = own and layers_in(own) or {}
  local top, layer = top_of(requirement.layers)
  if not top or top.ends == 0 or top.ends > now then
    return false
  end
  requirement.layers[layer] = nil
  if layer == 'set' then
    record_change('end', requirement.field, top.text, record and text_in(record) or '', top.about)
  end
  put_in_force(requirement)
  return true
end

-- Whether a definition would give slots to a requirement, or take them away. Workers know from the code whether a task
-- has a slot to release.
local function switches_kind(requirement, definition)
  local old = definition_of(requirement)
  return old and definition and old.has_slots ~= definition.has_slots
end

-- A weight for the log of changes, which has '' for none.
local function weight_text(weight)
  return weight ~= '0' and weight or ''
end

-- Call this after `open_record`.
local function write_weight(requirement, set, ends, rules)
  local field = 'weight ' .. requirement.field
  if set == '0' and rules == '0' then
    redis.call('HDEL', KEYS[1], field)
  else
    redis.call('HSET', KEYS[1], field, set .. ' ' .. ends .. ' ' .. rules)
  end
  list_definition(requirement)
end

-- Keys of which a definition or weight has ended that one call looks at, at most.
local ENDED_AT_ONCE = 10

-- Remove definitions and weights of keys of a name that have ended.
local function remove_ended(name)
  local ended = redis.call('ZRANGE', KEYS[7] .. name, 1, format_integer(now), 'BYSCORE', 'LIMIT', 0, ENDED_AT_ONCE)
  for _, key in ipairs(ended) do
    local requirement = requirement_of(name .. ':' .. key)
    local has_ended = open_record(requirement)
    local _, ends, rules = read_weight(requirement)
    if ends ~= '0' and tonumber(ends) <= now then
      write_weight(requirement, '0', '0', rules)
    elseif not has_ended then
      put_in_force(requirement) -- without what has ended of the layers below
    end
  end
end
