-- define.lua: puts definitions of limits in force.
-- KEYS  see `definitions.lua`
-- ARGV  2   'code': defaults of the code; without numbers for those that the code does not have
--           | 'set': set at run time. Definitions of keys of the name that have ended are removed, some at each call
--           | 'unset': what was set is removed; with the default of the code, if there is one. If neither it nor a
--             weight was set, and the code has no default, what other code has registered is removed
--           | 'lookup': given to a key by a function of the code; without numbers if the limits of the name apply. What
--             has ended is removed as for 'set'
--           | 'windows': new windows for definitions in force whose calendars have run out
--       3   for how long (us) it is set, or given to a key; 0 for ever
--       4   about: JSON, who does it and why
--       5   epoch of the answer that the limits are in this shard, see `shard_map.lua`; 0 in the home shard
--       then per name or key: its field and its definition, see `parse_definitions` in `lib/definitions.lua`
-- Reply {1, {index, ...}, {index, shard, ...}}    of those that were in force and have changed; and of those that are in
--                     another shard, for which nothing was done
--       {0, index}    'set' or 'lookup' would give slots to this one, or take them away: nothing was done
--
-- The state of each given name or key is converted at once. Keys of a name that have no definition of their own may be
-- many: their states are converted when they are read, by the times that the record holds.

local mode, lasts, about, epoch = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

local function put_code(requirement, definition)
  if not definition then
    return nil
  end
  local old = definition_of(requirement)
  requirement.layers.code = definition
  local has_changed = put_in_force(requirement)
  if has_changed then
    record_change('code', requirement.field, text_of(old), definition.text, about)
  end
  return has_changed
end

local function set(requirement, definition)
  record_change('define', requirement.field, text_of(definition_of(requirement)), definition.text, about, definition.ends)
  requirement.layers.set = definition
  return put_in_force(requirement)
end

local function unset(requirement, definition)
  local old, layers = definition_of(requirement), requirement.layers
  local is_stale = select(2, top_of(layers)) == 'code' and not definition
      and redis.call('HEXISTS', KEYS[1], 'weight ' .. requirement.field) == 0
  local is_change = layers.set or is_stale
  layers.set, layers.code = nil, not is_stale and (layers.code or definition) or nil
  local has_changed = put_in_force(requirement)
  if is_change then
    record_change('undefine', requirement.field, text_of(old), text_of(definition_of(requirement)), about)
  end
  return has_changed
end

-- The first lookup of a key is no change: nobody would find the others among those of thousands of keys.
local function put_lookup(requirement, definition)
  local old, was_known = definition_of(requirement), requirement.layers.code
  requirement.layers.code = definition or nil
  local has_changed = put_in_force(requirement)
  if has_changed and was_known then
    record_change('code', requirement.field, text_of(old), text_of(definition_of(requirement)), about)
  end
  return has_changed
end

-- Another definition may have been put in force since the windows were computed.
local function put_windows(requirement, definition)
  local top = top_of(requirement.layers)
  if top and definition and top.text == definition.text then
    top.numbers = definition.numbers
    return put_in_force(requirement)
  end
end

work_without_memory()
local requirements, definitions = parse_definitions(6, about, lasts > 0 and now + lasts or 0)
for i, requirement in ipairs(requirements) do
  if (mode == 'set' or mode == 'lookup') and switches_kind(requirement, definitions[i]) then
    return { 0, i }
  end
end
local change = { code = put_code, set = set, unset = unset, lookup = put_lookup, windows = put_windows }
local changed, elsewhere = {}, {}
for i, requirement in ipairs(requirements) do
  -- For a limit of the code that has just moved, the code of this shard may have none.
  local shard = (definitions[i] or mode == 'code') and other_shard(KEYS[8], requirement.name, epoch)
  if shard then
    elsewhere[#elsewhere + 1], elsewhere[#elsewhere + 2] = i, shard
  else
    if definitions[i] then
      note_here(KEYS[8], requirement.name, epoch)
    end
    local has_ended = open_record(requirement)
    local has_changed = change[mode](requirement, definitions[i])
    if mode == 'set' or mode == 'lookup' then
      remove_ended(requirement.name)
    end
    if has_ended or has_changed then
      changed[#changed + 1] = i
    end
  end
end
return { 1, changed, elsewhere }
