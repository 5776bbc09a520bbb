-- read_definitions.lua: reads definitions of limits as `celery_throttle/store/definitions.py` packed them.
-- uses: bulk_commands, clock, definition
-- uses rarely: ended_definition
-- KEYS  1   hash: definitions of limits
-- ARGV  1   now (us), or '' for the server's clock
--       then fields
-- Reply per field the definition without its origin and times, see `definition.lua`, or nil

local found = read_many('HMGET', KEYS[1], ARGV, 2, #ARGV)
for i, packed in ipairs(found) do
  packed = packed and ended_definition()(packed, false)
  found[i] = packed and string.sub(packed, SECOND_PART)
end
return found
