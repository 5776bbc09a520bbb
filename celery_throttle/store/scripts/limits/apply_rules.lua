-- apply_rules.lua: puts the limits and weights of a rules file in force, in place of those of the file before.
-- uses: definition_layers
-- KEYS  1-4 see `definition_layers.lua`. Fields of layers are besides
--           rules       when (us) the file that is in force was modified, when (us) it was put in force, and JSON: its
--                       digest and source, who put it in force, and why
--           rules-text  its rules, as `celery_throttle/rules/dump.py` writes them
--       5-7 heads of names: with a field behind them, of states and of entries; with a name behind it, of the keys with a
--           definition or weight of their own
-- ARGV  1   now (us), or '' for the server's clock
--       2   when (us) the file was modified; '' for now: it replaces any other
--       3   about: JSON, who does it and why
--       4   digest
--       5   JSON for the field 'rules'
--       6   text for the field 'rules-text'
--       7   number of limits
--       then per limit: field, second part of a definition packed by `celery_throttle/store/definitions.py`
--       then per weight: field, weight
-- Reply {1, when (us) the file was modified, name, ...}    of the limits that the rules define in another way now
--       {0, when (us)}    the rules in force were modified later: nothing was done
--       {-1, field}       this limit would get slots, or lose them: nothing was done. Workers know from the code whether
--                         a task has a slot to release

local about, digest, limit_count = ARGV[3], ARGV[4], tonumber(ARGV[7])

local function text_of(packed)
  return packed and definition_tail()(packed, FIRST_IN_SECOND_PART).text or ''
end

local function add_requirement(requirements, field, packed)
  local name = string.match(field, '^[^:]+')
  requirements[#requirements + 1] = {
    name = name, field = field, packed = packed, state = KEYS[5] .. field, entries = KEYS[6] .. field,
    own_keys = KEYS[7] .. name, has_key = name ~= field, pause = 0,
  }
end

-- Each field of the layers hash behind a head that is not in `kept`.
local function list_gone(head, kept)
  local gone = {}
  for _, found in ipairs(redis.call('HKEYS', KEYS[2])) do
    local field = string.match(found, '^' .. head .. '(%S+)$')
    if field and not kept[field] then
      gone[#gone + 1] = field
    end
  end
  return gone
end

-- What the rules define in another way now: names before their keys, whose states depend on both.
local function list_changed_limits()
  local changed, kept = {}, {}
  for i = 8, 6 + 2 * limit_count, 2 do
    local field, packed = ARGV[i], ARGV[i + 1]
    kept[field] = true
    if text_of(redis.call('HGET', KEYS[2], 'rules ' .. field)) ~= text_of(packed) then
      add_requirement(changed, field, packed .. pack_tail(0, about, ''))
    end
  end
  for _, field in ipairs(list_gone('rules ', kept)) do
    add_requirement(changed, field, false)
  end
  table.sort(changed, function(one, other) return one.field < other.field end)
  return changed
end

local function switches_kind(requirement)
  local old = definition_of(requirement)
  local new = requirement.packed or redis.call('HGET', KEYS[2], 'code ' .. requirement.field)
  local parse = definition_limits().parse
  return old and new and parse(old, FIRST_LIMIT).has_slots ~= parse(new, FIRST_IN_SECOND_PART).has_slots
end

local function change_limit(requirement)
  write_end(requirement)
  local layer, own = 'rules ' .. requirement.field, redis.call('HGET', KEYS[1], requirement.field)
  record_change('rules', requirement.field, text_of(redis.call('HGET', KEYS[2], layer)), text_of(requirement.packed), about)
  if requirement.packed then
    redis.call('HSET', KEYS[2], layer, requirement.packed)
  else
    redis.call('HDEL', KEYS[2], layer)
  end
  if own and string.byte(own) == BOUNDED_ORIGIN then
    renew_below(requirement)
  elseif not own or string.byte(own) ~= SET then
    put_below_in_force(requirement)
  end
end

-- Put a weight of the rules in force; '' for none. One that was set at run time stays until it ends.
local function put_weight_in_force(field, weight, old)
  local found = redis.call('HGET', KEYS[1], 'weight ' .. field)
  local own, ends = string.match(found or '', '^(%d+) (%d+)')
  if own and tonumber(ends) > now then
    redis.call('HSET', KEYS[1], 'weight ' .. field, own .. ' ' .. ends .. ' ' .. weight)
  elseif found and not own and (old == '' or redis.call('HEXISTS', KEYS[2], 'set weight ' .. field) == 1) then
    redis.call('HSET', KEYS[2], 'set weight ' .. field, '1')
  elseif weight ~= '' then
    redis.call('HSET', KEYS[1], 'weight ' .. field, weight)
  else
    redis.call('HDEL', KEYS[1], 'weight ' .. field)
  end
end

local function change_weight(field, weight)
  local layer = 'rules weight ' .. field
  local old = redis.call('HGET', KEYS[2], layer) or ''
  if old == weight then
    return
  end
  record_change('weight', field, old, weight, about)
  put_weight_in_force(field, weight, old)
  if weight ~= '' then
    redis.call('HSET', KEYS[2], layer, weight)
  else
    redis.call('HDEL', KEYS[2], layer)
  end
  local name = string.match(field, '^[^:]+')
  if name ~= field then
    list_definition({ name = name, field = field, own_keys = KEYS[7] .. name },
                    redis.call('HEXISTS', KEYS[1], field) == 1)
  end
end

local function change_weights()
  local kept = {}
  for i = 8 + 2 * limit_count, #ARGV, 2 do
    kept[ARGV[i]] = true
    change_weight(ARGV[i], ARGV[i + 1])
  end
  for _, field in ipairs(list_gone('rules weight ', kept)) do
    change_weight(field, '')
  end
end

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', KEYS[2], '')
local modified = math.min(tonumber(ARGV[2]) or now, now)
local record = redis.call('HGET', KEYS[2], 'rules')
local recorded, rest = string.match(record or '', '^(%d+)(.*)$')
if record and string.find(rest, digest, 1, true) then
  modified = format_integer(math.max(modified, tonumber(recorded)))
  redis.call('HSET', KEYS[2], 'rules', modified .. rest)
  return { 1, modified }
elseif record and ARGV[2] ~= '' and tonumber(recorded) > modified then
  return { 0, recorded }
end
local changed = list_changed_limits()
for _, requirement in ipairs(changed) do
  if switches_kind(requirement) then
    return { -1, requirement.field }
  end
end
local reply, listed = { 1, format_integer(modified) }, {}
for _, requirement in ipairs(changed) do
  change_limit(requirement)
  if not listed[requirement.name] then
    listed[requirement.name], reply[#reply + 1] = true, requirement.name
  end
end
change_weights()
record = format_integer(modified) .. ' ' .. format_integer(now) .. ' ' .. ARGV[5]
redis.call('HSET', KEYS[2], 'rules', record, 'rules-text', ARGV[6])
return reply
