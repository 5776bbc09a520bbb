-- apply_rules.lua: puts the limits and weights of a rules file in force, in place of those of the file before. It does
-- so step by step, so that no call blocks the server.
-- uses: definition_layers
-- KEYS  1-4 see `definition_layers.lua`. Fields of layers are besides
--           rules       when (us) the file that is in force was modified, when (us) it was put in force, and JSON: its
--                       digest and source, who put it in force, and why
--           rules-text  its rules, as `celery_throttle/rules/dump.py` writes them
--           rules-next  only while a file is put in force in parts: when (us) it was modified, session, number of
--                       parts so far, digest. All that use the session put the same file in force, so each part brings
--                       the layers closer to it
--       5-7 heads of names: with a field behind them, of states and of entries; with a name behind it, of the keys with a
--           definition or weight of their own
-- ARGV  1   now (us), or '' for the server's clock
--       2   step: 'look', 'list', 'check' or 'apply'
--       3   when (us) the file was modified; '' for now: it replaces any other
--       4   digest
-- 'look' ARGV  5  '1' if another file has come between: then one of the same time replaces this one
--       Reply {1, when (us)}      these rules are in force
--             {0, when (us)}      the rules in force, or those of the next file, were modified later
--             {2, when (us) the file was modified, field 'rules' or '', field 'rules-next' or ''}    else
-- 'list' ARGV  5  cursor: '0' at first, then the one that the last call replied
--       Reply {cursor of the next call, '0' at the end; field of layers, ...}    of limits and weights of rules
-- 'check' ARGV  5  number of limits
--       then per limit: field, second part of a definition packed by `celery_throttle/store/definitions.py`, or ''
--       then per weight: field, weight or ''
--       Reply {1, index, ...}     of the limits and weights, counted through, that are others in force
--             {-1, field}         this limit would get slots, or lose them. Workers know from the code whether a task
--                                 has a slot to release
-- 'apply' ARGV  5, 6  of the first part: the fields that 'look' replied; of others '-'
--       7   session: that of the field 'rules-next' if its digest is the same, else a new one
--       8   about: JSON, who does it and why
--       9   of the last part: JSON for the field 'rules'; of others ''
--       10  of the last part: text for the field 'rules-text'
--       11  number of limits; then limits and weights as for 'check'
--       Reply {1, when (us) the file was modified, name, ...}    of the limits that the rules define in another way now
--             {2}                 another file has come between: nothing was done
--             {-1, field}         as for 'check': nothing was done

local step, digest = ARGV[2], ARGV[4]
local about = step == 'apply' and ARGV[8] or ''
local modified = math.min(tonumber(ARGV[3]) or now, now)

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

-- Those of the given limits that the rules define in another way now; names before their keys, whose states depend on
-- both. The limits begin at the argument `first`.
local function list_changed_limits(first, count)
  local changed = {}
  for i = first, first + 2 * count - 1, 2 do
    local field, packed = ARGV[i], ARGV[i + 1] ~= '' and ARGV[i + 1]
    if text_of(redis.call('HGET', KEYS[2], 'rules ' .. field)) ~= text_of(packed) then
      add_requirement(changed, field, packed and packed .. pack_tail(0, about, ''))
      changed[#changed].index = (i - first) / 2 + 1
    end
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
local function put_weight_in_force(field, weight)
  local found = redis.call('HGET', KEYS[1], 'weight ' .. field)
  local own, ends = string.match(found or '', '^(%d+) (%d+)')
  local is_set_for_ever = found and not own and redis.call('HEXISTS', KEYS[2], 'set weight ' .. field) == 1
  if own and tonumber(ends) > now then
    redis.call('HSET', KEYS[1], 'weight ' .. field, own .. ' ' .. ends .. ' ' .. weight)
  elseif not is_set_for_ever and weight ~= '' then
    redis.call('HSET', KEYS[1], 'weight ' .. field, weight)
  elseif not is_set_for_ever then
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
  put_weight_in_force(field, weight)
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

-- The first limit that would switch between a rate and slots, or nil.
local function find_switch(changed)
  for _, requirement in ipairs(changed) do
    if switches_kind(requirement) then
      return requirement.field
    end
  end
end

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', KEYS[2], '')
local record, next_file = unpack(redis.call('HMGET', KEYS[2], 'rules', 'rules-next'))
local next_modified, session, parts, next_digest = string.match(next_file or '', '^(%d+) (%S+) (%d+) (.*)$')

local function look()
  local recorded, rest = string.match(record or '', '^(%d+)(.*)$')
  if record and not next_file and string.find(rest, digest, 1, true) then
    local latest = format_integer(math.max(modified, tonumber(recorded)))
    redis.call('HSET', KEYS[2], 'rules', latest .. rest)
    return { 1, latest }
  end
  local newest = next_modified or recorded
  local age = newest and next_digest ~= digest and ARGV[3] ~= '' and tonumber(newest) - modified or -1
  if age > 0 or age == 0 and ARGV[5] == '1' then
    return { 0, newest }
  end
  return { 2, format_integer(modified), record or '', next_file or '' }
end

local function list_rows()
  local found = redis.call('HSCAN', KEYS[2], ARGV[5], 'COUNT', 200)
  local reply = { found[1] }
  for i = 1, #found[2], 2 do
    if string.sub(found[2][i], 1, 6) == 'rules ' then
      reply[#reply + 1] = found[2][i]
    end
  end
  return reply
end

local function check()
  local count, reply = tonumber(ARGV[5]), { 1 }
  local changed = list_changed_limits(6, count)
  local switched = find_switch(changed)
  if switched then
    return { -1, switched }
  end
  for _, requirement in ipairs(changed) do
    reply[#reply + 1] = requirement.index
  end
  for i = 6 + 2 * count, #ARGV, 2 do
    if (redis.call('HGET', KEYS[2], 'rules weight ' .. ARGV[i]) or '') ~= ARGV[i + 1] then
      reply[#reply + 1] = (i - 6) / 2 + 1
    end
  end
  return reply
end

-- Whether no other file has come between the look, or the part before, and this part.
local function is_next()
  local is_session = next_digest == digest and session == ARGV[7]
  return is_session or ARGV[5] == (record or '') and ARGV[6] == (next_file or '')
end

local function apply()
  if not is_next() then
    return { 2 }
  end
  local count = tonumber(ARGV[11])
  local changed = list_changed_limits(12, count)
  local switched = find_switch(changed)
  if switched then
    return { -1, switched }
  end
  if ARGV[9] == '' then
    local number = next_digest == digest and parts or 0
    redis.call('HSET', KEYS[2], 'rules-next',
               table.concat({ format_integer(modified), ARGV[7], format_integer(number + 1), digest }, ' '))
  end
  local reply, listed = { 1, format_integer(modified) }, {}
  for _, requirement in ipairs(changed) do
    change_limit(requirement)
    if not listed[requirement.name] then
      listed[requirement.name], reply[#reply + 1] = true, requirement.name
    end
  end
  for i = 12 + 2 * count, #ARGV, 2 do
    change_weight(ARGV[i], ARGV[i + 1])
  end
  if ARGV[9] ~= '' then
    local packed = format_integer(modified) .. ' ' .. format_integer(now) .. ' ' .. ARGV[9]
    redis.call('HSET', KEYS[2], 'rules', packed, 'rules-text', ARGV[10])
    redis.call('HDEL', KEYS[2], 'rules-next')
  end
  return reply
end

if step == 'look' then
  return look()
elseif step == 'list' then
  return list_rows()
elseif step == 'check' then
  return check()
end
return apply()
