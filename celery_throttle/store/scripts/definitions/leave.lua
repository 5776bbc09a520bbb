-- leave.lua: removes a limit from the shard that it leaves, see `shard_map.lua`.
-- KEYS  1-8  see `definitions.lua`
--       9    index of the waiting lists of the limit
-- ARGV  2    name of the limit
--       3    epoch of the move
--       4    name of the shard that it goes to
--       5    '1' if it has gone there already, as the map says that was made anew: also if tasks wait at the limit, which
--            then go where it is; nothing is done if the limit has come back since
-- Reply 1; 0 if tasks wait at the limit: nothing was done

local name, epoch, target, has_gone = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'

work_without_memory()
if not has_gone and redis.call('EXISTS', KEYS[9]) == 1 then
  return 0
end
local since, location = string.match(redis.call('HGET', KEYS[8], name) or '0 ', '^(%d+) (.*)$')
local is_older = tonumber(since) < tonumber(epoch)
if has_gone and location ~= target and not (location == '@' and is_older) then
  return 1
end
if is_older or location == '@' then
  redis.call('HSET', KEYS[8], name, (is_older and epoch or since) .. ' ' .. target)
end
local fields = { name, 'weight ' .. name }
for _, key in ipairs(redis.call('ZRANGE', KEYS[7] .. name, 0, -1)) do
  fields[#fields + 1], fields[#fields + 2] = name .. ':' .. key, 'weight ' .. name .. ':' .. key
end
call_with('HDEL', KEYS[1], fields)
redis.call('SREM', KEYS[3], name)
redis.call('DEL', KEYS[7] .. name)
return 1
