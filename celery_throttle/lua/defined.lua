-- defined.lua: reads definitions of limits as `celery_throttle/definitions.py` packed them.
--
-- KEYS  1   hash: definitions of limits
-- ARGV  fields
-- Reply per field the definition without its origin and times, or nil

local found = redis.call('HMGET', KEYS[1], unpack(ARGV))
for i, packed in ipairs(found) do
  found[i] = packed and string.sub(packed, 26)
end
return found
