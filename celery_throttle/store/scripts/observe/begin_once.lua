-- begin_once.lua: lets one of several callers begin what they all would do.
-- KEYS  what is to be done; several if each of them must not have been done lately
-- ARGV  from 2 on: per key: for how long (us) nobody else does it
-- Reply 1 if the caller begins, else 0

if redis.call('EXISTS', unpack(KEYS)) > 0 then
  return 0
end
work_without_memory()
for i, key in ipairs(KEYS) do
  redis.call('SET', key, format_integer(now), 'PX', expiry_ms(tonumber(ARGV[i + 1])))
end
return 1
