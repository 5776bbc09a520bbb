-- read_layers.lua: reads what the rules file and the code define.
-- KEYS  1   hash: definitions of limits
-- ARGV  from 2 on: fields of limits and keys
-- Reply per field the limits of the rules file, and those of the code, as text; nil for none

local reply = {}
for i = 2, #ARGV do
  local record = redis.call('HGET', KEYS[1], ARGV[i])
  local layers = record and layers_in(record) or {}
  reply[#reply + 1] = layers.rules and layers.rules.text or false
  reply[#reply + 1] = layers.code and layers.code.text or false
end
return reply
