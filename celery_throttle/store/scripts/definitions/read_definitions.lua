-- read_definitions.lua: reads the limits in force of names and keys that have their own.
-- uses: bulk_commands, clock
-- uses rarely: definition_record
-- KEYS  1   hash: records of limits
-- ARGV  1   now (us), or '' for the server's clock
--       then fields
-- Reply per field the limits as text, or nil

local found, records = read_many('HMGET', KEYS[1], ARGV, 2, #ARGV), definition_record()
for i, record in ipairs(found) do
  record = record and records.in_force(record, false)
  found[i] = record and records.text(record)
end
return found
