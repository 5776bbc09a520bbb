-- list_definition.lua: lists names and keys that have a definition, and keys that have a weight of their own.

-- List a requirement of `change_definition.lua`, or remove it from the list.
local function list_definition(requirement)
  local name, field = requirement.name, requirement.field
  local is_listed = redis.call('HEXISTS', KEYS[1], field) == 1
  if field == name then
    redis.call(is_listed and 'SADD' or 'SREM', KEYS[3], name)
  elseif is_listed or redis.call('HEXISTS', KEYS[1], 'weight ' .. field) == 1 then
    redis.call('ZADD', requirement.own_keys, 0, string.sub(field, #name + 2))
  else
    redis.call('ZREM', requirement.own_keys, string.sub(field, #name + 2))
  end
end
