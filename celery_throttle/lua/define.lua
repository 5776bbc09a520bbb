-- define.lua: put definitions of limits in force.
--
-- KEYS  1            hash: definitions of limits
-- ARGV  1            'code' (defaults of the code: never replace one defined at run time)
--                    | 'set' (defined at run time) | 'drop'
--       then per limit: field, definition ("gcra 10000 1 20"; '' with 'drop')
-- Reply how many are now in force as given.

local origin, changed = ARGV[1], 0
for i = 2, #ARGV, 2 do
  local field, definition = ARGV[i], ARGV[i + 1]
  if origin == 'drop' then
    changed = changed + redis.call('HDEL', KEYS[1], field)
  else
    local current = origin == 'code' and redis.call('HGET', KEYS[1], field)
    if not current or string.sub(current, 1, 4) ~= 'set ' then
      redis.call('HSET', KEYS[1], field, origin .. ' ' .. definition)
      changed = changed + 1
    end
  end
end
return changed
