-- read_layers.lua: reads what the rules file and the code define, see `definition_layers.lua`.
-- KEYS  1   hash: layers
-- ARGV      fields of limits and keys
-- Reply per field the second part of a definition, see `definition.lua`: that of the rules file, or else that of the
-- code; nil if neither has one

local reply = {}
for i, field in ipairs(ARGV) do
  local found = redis.call('HMGET', KEYS[1], 'rules ' .. field, 'code ' .. field)
  reply[i] = found[1] or found[2]
end
return reply
