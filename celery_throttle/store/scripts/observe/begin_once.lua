-- begin_once.lua: lets one of several callers begin what they all would do.
-- uses: clock
-- KEYS  what is to be done; several if each of them must not have been done lately
-- ARGV  1   now (us), or '' for the server's clock
--       then per key: for how long (us) nobody else does it
-- Reply 1 if the caller begins, else 0

if redis.call('EXISTS', unpack(KEYS)) > 0 then
  return 0
end
-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('DEL', KEYS[1])
for i, key in ipairs(KEYS) do
  redis.call('SET', key, format_integer(now), 'PX', expiry_ms(tonumber(ARGV[i + 1])))
end
return 1
