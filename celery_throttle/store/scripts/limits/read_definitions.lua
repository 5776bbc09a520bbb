-- read_definitions.lua: reads definitions of limits as `celery_throttle/store/definitions.py` packed them.
-- uses: bulk_commands
-- KEYS  1   hash: definitions of limits
-- ARGV  fields
-- Reply per field the definition without its origin and times, see `definition.lua`, or nil

local found = read_many('HMGET', KEYS[1], ARGV, 1, #ARGV)
for i, packed in ipairs(found) do
  found[i] = packed and string.sub(packed, 26)
end
return found
