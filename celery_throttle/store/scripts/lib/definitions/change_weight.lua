-- change_weight.lua: reads and writes all parts of the weight of a limit, or of one key of it, see `weights.lua`.
-- uses: clock, weights, list_definition
-- For the keys and the requirement see `change_definition.lua`.

-- The weight set at run time, when (us) it ends, the weight of the rules file, and the weight in force; 0 for none.
local function read_weight(requirement)
  local text = redis.call('HGET', KEYS[1], 'weight ' .. requirement.field) or '0 0 0'
  local set, ends, rules = string.match(text, '^(%d+) (%d+) (%d+)$')
  return set, ends, rules, format_integer(weight_in_force(text) or 0)
end

-- A weight for the log of changes, which has '' for none.
local function weight_text(weight)
  return weight ~= '0' and weight or ''
end

local function write_weight(requirement, set, ends, rules)
  local field = 'weight ' .. requirement.field
  if set == '0' and rules == '0' then
    redis.call('HDEL', KEYS[1], field)
  else
    redis.call('HSET', KEYS[1], field, set .. ' ' .. ends .. ' ' .. rules)
  end
  list_definition(requirement)
end
