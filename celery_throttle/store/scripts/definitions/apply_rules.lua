-- apply_rules.lua: puts the limits and weights of a rules file in force, in place of those of the file before. It does
-- so step by step, so that no call blocks the server.
-- KEYS  see `definitions.lua`. The hash of the rules file has the fields
--           version     when (us) the file that is in force was modified, when (us) it was put in force, and JSON: its
--                       digest and source, who put it in force, and why
--           text        its rules, as `celery_throttle/limits/rules/rules.py` writes them
--           next        only while a file is put in force in parts: when (us) it was modified, session, number of
--                       parts so far, digest. All that use the session put the same file in force, so each part brings
--                       the layers closer to it
-- ARGV  2   JSON: step      'look', 'list', 'check' or 'apply'
--                 digest    of the rules
--                 modified  when (us) the file was modified; 0 for now: it replaces any other
--                 epoch     for 'check' and 'apply', see `define.lua`
--                 and those of the step
--       then for 'check' and 'apply' per limit: its field and its definition, see `parse_definitions` in `lib/definitions.lua`; without numbers if
--       it is to be removed
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
--         {-2, field, shard}  this limit is in another shard
-- 'apply' seen      in the first part: the fields that 'look' replied; in others empty
--         session   that of the field 'next' if its digest is the same, else a new one
--         about     who does it and why
--         version   in the last part: JSON for the field 'version'
--         text      in the last part: for the field 'text'
--         weights   {field, weight, 0 to remove it, ...}
--   Reply {1, when (us) the file was modified, name, ...}    of the limits that the rules define in another way now
--         {2}                 another file has come between: nothing was done
--         {-1, field} or {-2, field, shard}    as for 'check': nothing was done

local request = cjson.decode(ARGV[2])
local modified = request.modified > 0 and math.min(request.modified, now) or now

-- The first limit that would switch between a rate and slots, or nil.
local function find_switch(requirements, definitions)
  for i, requirement in ipairs(requirements) do
    local own = redis.call('HGET', KEYS[1], requirement.field)
    if switches_kind(requirement, definitions[i] or own and layers_in(own).code) then
      return requirement.field
    end
  end
end

-- The first limit that is in another shard, and the name of that; or nil.
local function find_elsewhere(requirements, definitions)
  for i, requirement in ipairs(requirements) do
    local shard = definitions[i] and other_shard(KEYS[8], requirement.name, request.epoch)
    if shard then
      return requirement.field, shard
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
  record_change('rules', requirement.field, text_of(layers.rules), text_of(definition), request.about)
  if definition then
    note_here(KEYS[8], requirement.name, request.epoch)
  end
  layers.rules = definition or nil
  put_in_force(requirement)
  return true
end

local function change_rules_weight(requirement, weight)
  local set, ends, rules = read_weight(requirement)
  if rules ~= weight then
    open_record(requirement)
    write_weight(requirement, set, ends, weight)
    record_change('weight', requirement.field, weight_text(rules), weight_text(weight), request.about)
  end
end

work_without_memory()
local version, next_file = unpack(redis.call('HMGET', KEYS[2], 'version', 'next'))
local next_modified, session, parts, next_digest = string.match(next_file or '', '^(%d+) (%S+) (%d+) (.*)$')

local function look()
  local recorded, rest = string.match(version or '', '^(%d+)(.*)$')
  if version and not next_file and string.find(rest, request.digest, 1, true) then
    local latest = format_integer(math.max(modified, tonumber(recorded)))
    redis.call('HSET', KEYS[2], 'version', latest .. rest)
    return { 1, latest }
  end
  local newest = next_modified or recorded
  local age = newest and next_digest ~= request.digest and request.modified > 0 and tonumber(newest) - modified or -1
  if age > 0 or age == 0 and request.is_again then
    return { 0, newest }
  end
  return { 2, format_integer(modified), version or '', next_file or '' }
end

local function list_rules()
  local found = redis.call('HSCAN', KEYS[1], request.cursor, 'COUNT', 200)
  local reply = { found[1] }
  for i = 1, #found[2], 2 do
    local field, stored = found[2][i], found[2][i + 1]
    local weight = string.match(field, '^weight ') and string.match(stored, '%d+$')
    local rule = not weight and layers_in(stored).rules
    if rule or weight and weight ~= '0' then
      reply[#reply + 1], reply[#reply + 2] = field, rule and rule.text or weight
    end
  end
  return reply
end

-- Whether no other file has come between the look, or the part before, and this part.
local function is_next()
  local is_session = next_digest == request.digest and session == request.session
  return is_session or request.seen[1] == (version or '') and request.seen[2] == (next_file or '')
end

local function apply(requirements, definitions)
  if not request.version then
    local number = next_digest == request.digest and parts or 0
    redis.call('HSET', KEYS[2], 'next',
               table.concat({ format_integer(modified), request.session, format_integer(number + 1), request.digest }, ' '))
  end
  local reply, listed = { 1, format_integer(modified) }, {}
  for i, requirement in ipairs(requirements) do
    if change_limit(requirement, definitions[i]) and not listed[requirement.name] then
      listed[requirement.name], reply[#reply + 1] = true, requirement.name
    end
  end
  for i = 1, #request.weights, 2 do
    change_rules_weight(requirement_of(request.weights[i]), format_integer(request.weights[i + 1]))
  end
  if request.version then
    local packed = format_integer(modified) .. ' ' .. format_integer(now) .. ' ' .. request.version
    redis.call('HSET', KEYS[2], 'version', packed, 'text', request.text)
    redis.call('HDEL', KEYS[2], 'next')
  end
  return reply
end

if request.step == 'look' then
  return look()
elseif request.step == 'list' then
  return list_rules()
elseif request.step == 'apply' and not is_next() then
  return { 2 }
end
local requirements, definitions = parse_definitions(3, request.about, 0)
local switched = find_switch(requirements, definitions)
if switched then
  return { -1, switched }
end
local foreign, shard = find_elsewhere(requirements, definitions)
if foreign then
  return { -2, foreign, shard }
end
return request.step == 'check' and { 1 } or apply(requirements, definitions)
