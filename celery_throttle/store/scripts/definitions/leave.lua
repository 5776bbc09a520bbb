-- leave.lua: removes a limit from the shard that it leaves, see `shard_map.lua`.
-- KEYS  1-8  see `definitions.lua`
--       9    index of the waiting lists of the limit
-- ARGV  2    name of the limit
--       3    epoch of the move
--       4    name of the shard that it goes to
-- Reply 1; 0 if tasks wait at the limit: nothing was done

local name, epoch = ARGV[2], ARGV[3]

work_without_memory()
if redis.call('EXISTS', KEYS[9]) == 1 then
  return 0
end
local entry = redis.call('HGET', KEYS[8], name)
if tonumber(string.match(entry or '0', '^%d+')) < tonumber(epoch) then
  redis.call('HSET', KEYS[8], name, epoch .. ' ' .. ARGV[4])
end
local fields = { name, 'weight ' .. name }
for _, key in ipairs(redis.call('ZRANGE', KEYS[7] .. name, 0, -1)) do
  fields[#fields + 1], fields[#fields + 2] = name .. ':' .. key, 'weight ' .. name .. ':' .. key
end
call_with('HDEL', KEYS[1], fields)
redis.call('SREM', KEYS[3], name)
redis.call('DEL', KEYS[7] .. name)
return 1
