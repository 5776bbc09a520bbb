-- read_definitions.lua: reads the limits in force of names and keys that have their own.
-- KEYS  1   hash: definitions of limits
-- ARGV  from 2 on: fields
-- Reply per field the limits as text, or nil

local found = read_many('HMGET', KEYS[1], ARGV, 2, #ARGV)
for i, record in ipairs(found) do
  record = record_in_force(record, false)
  found[i] = record and text_in(record)
end
return found
