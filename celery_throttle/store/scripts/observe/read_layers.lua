-- read_layers.lua: reads what the rules file and the code define, see `definition_layers.lua`.
-- KEYS  1   hash: layers
-- ARGV      fields of limits and keys
-- Reply per field two second parts of definitions, see `definition.lua`: that of the rules file, and that of the code;
--       nil for none

local reply = {}
for _, field in ipairs(ARGV) do
  local found = redis.call('HMGET', KEYS[1], 'rules ' .. field, 'code ' .. field)
  reply[#reply + 1], reply[#reply + 2] = found[1], found[2]
end
return reply
