-- apply_rules.lua: puts the limits and weights of a rules file in force, in place of those of the file before. It does
-- so step by step, so that no call blocks the server.
-- uses: change_definition, change_weight
-- KEYS  1-4 see `change_definition.lua`. The hash of the rules file has the fields
--           version     when (us) the file that is in force was modified, when (us) it was put in force, and JSON: its
--                       digest and source, who put it in force, and why
--           text        its rules, as `celery_throttle/limits/rules/dump.py` writes them
--           next        only while a file is put in force in parts: when (us) it was modified, session, number of
--                       parts so far, digest. All that use the session put the same file in force, so each part brings
--                       the layers closer to it
--       5-7 heads of names: with a field behind them, of states and of entries; with a name behind it, of the keys with a
--           definition or weight of their own
-- ARGV  1   now (us), or '' for the server's clock
--       2   JSON: step      'look', 'list', 'check' or 'apply'
--                 digest    of the rules
--                 modified  when (us) the file was modified; 0 for now: it replaces any other
--                 and those of the step
--       then for 'check' and 'apply' per limit: its field, and the definition, see `read_definition`; without numbers if it
--       is to be removed
-- 'look'  is_again  true if another file has come between: then one of the same time replaces this one
--   Reply {1, when (us)}      these rules are in force
--         {0, when (us)}      the rules in force, or those of the next file, were modified later
--         {2, when (us) the file was modified, field 'version' or '', field 'next' or ''}    else
-- 'list'  cursor    '0' at first, then the one that the last call replied
--   Reply {cursor of the next call, '0' at the end; field, limits as text, ...}    of the rules in force; and of their
--         weights 'weight ' and the field, the weight
-- 'check'
--   Reply {1}
--         {-1, field}         this limit would get slots, or lose them
-- 'apply' seen      in the first part: the fields that 'look' replied; in others empty
--         session   that of the field 'next' if its digest is the same, else a new one
--         about     who does it and why
--         version   in the last part: JSON for the field 'version'
--         text      in the last part: for the field 'text'
--         weights   {field, weight, 0 to remove it, ...}
--   Reply {1, when (us) the file was modified, name, ...}    of the limits that the rules define in another way now
--         {2}                 another file has come between: nothing was done
--         {-1, field}         as for 'check': nothing was done

local call = cjson.decode(ARGV[2])
local modified = call.modified > 0 and math.min(call.modified, now) or now

local function requirement_of(field)
  local name = string.match(field, '^[^:]+')
  return { name = name, field = field, state = KEYS[5] .. field, entries = KEYS[6] .. field,
           own_keys = KEYS[7] .. name, has_key = name ~= field, pause = 0 }
end

-- The limits of this call, each with its definition.
local function read_limits()
  local requirements, definitions = {}, {}
  for i = 3, #ARGV, 1 + DEFINITION_ARGUMENTS do
    requirements[#requirements + 1] = requirement_of(ARGV[i])
    definitions[#requirements] = read_definition(i + 1, call.about, 0) or false
  end
  return requirements, definitions
end

-- The first limit that would switch between a rate and slots, or nil.
local function find_switch(requirements, definitions)
  for i, requirement in ipairs(requirements) do
    local own = redis.call('HGET', KEYS[1], requirement.field)
    if switches_kind(requirement, definitions[i] or own and records.layers(own).code) then
      return requirement.field
    end
  end
end

-- Returns whether the rules defined the limit in another way before.
local function change_limit(requirement, definition)
  open_record(requirement)
  local layers = requirement.layers
  if text_of(layers.rules) == text_of(definition) then
    return false
  end
  record_change('rules', requirement.field, text_of(layers.rules), text_of(definition), call.about)
  layers.rules = definition or nil
  put_in_force(requirement)
  return true
end

local function change_rules_weight(requirement, weight)
  local set, ends, rules = read_weight(requirement)
  if rules ~= weight then
    write_weight(requirement, set, ends, weight)
    record_change('weight', requirement.field, weight_text(rules), weight_text(weight), call.about)
  end
end

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', KEYS[2], '')
local version, next_file = unpack(redis.call('HMGET', KEYS[2], 'version', 'next'))
local next_modified, session, parts, next_digest = string.match(next_file or '', '^(%d+) (%S+) (%d+) (.*)$')

local function look()
  local recorded, rest = string.match(version or '', '^(%d+)(.*)$')
  if version and not next_file and string.find(rest, call.digest, 1, true) then
    local latest = format_integer(math.max(modified, tonumber(recorded)))
    redis.call('HSET', KEYS[2], 'version', latest .. rest)
    return { 1, latest }
  end
  local newest = next_modified or recorded
  local age = newest and next_digest ~= call.digest and call.modified > 0 and tonumber(newest) - modified or -1
  if age > 0 or age == 0 and call.is_again then
    return { 0, newest }
  end
  return { 2, format_integer(modified), version or '', next_file or '' }
end

local function list_rules()
  local found = redis.call('HSCAN', KEYS[1], call.cursor, 'COUNT', 200)
  local reply = { found[1] }
  for i = 1, #found[2], 2 do
    local field, stored = found[2][i], found[2][i + 1]
    local weight = string.match(field, '^weight ') and string.match(stored, '%d+$')
    local rule = not weight and records.layers(stored).rules
    if rule or weight and weight ~= '0' then
      reply[#reply + 1], reply[#reply + 2] = field, rule and rule.text or weight
    end
  end
  return reply
end

-- Whether no other file has come between the look, or the part before, and this part.
local function is_next()
  local is_session = next_digest == call.digest and session == call.session
  return is_session or call.seen[1] == (version or '') and call.seen[2] == (next_file or '')
end

local function apply(requirements, definitions)
  if not call.version then
    local number = next_digest == call.digest and parts or 0
    redis.call('HSET', KEYS[2], 'next',
               table.concat({ format_integer(modified), call.session, format_integer(number + 1), call.digest }, ' '))
  end
  local reply, listed = { 1, format_integer(modified) }, {}
  for i, requirement in ipairs(requirements) do
    if change_limit(requirement, definitions[i]) and not listed[requirement.name] then
      listed[requirement.name], reply[#reply + 1] = true, requirement.name
    end
  end
  for i = 1, #call.weights, 2 do
    change_rules_weight(requirement_of(call.weights[i]), format_integer(call.weights[i + 1]))
  end
  if call.version then
    local packed = format_integer(modified) .. ' ' .. format_integer(now) .. ' ' .. call.version
    redis.call('HSET', KEYS[2], 'version', packed, 'text', call.text)
    redis.call('HDEL', KEYS[2], 'next')
  end
  return reply
end

if call.step == 'look' then
  return look()
elseif call.step == 'list' then
  return list_rules()
elseif call.step == 'apply' and not is_next() then
  return { 2 }
end
local requirements, definitions = read_limits()
local switched = find_switch(requirements, definitions)
if switched then
  return { -1, switched }
end
return call.step == 'check' and { 1 } or apply(requirements, definitions)
