-- assign.lua: changes the map of limits to shards, in the home shard.
-- KEYS  1   hash: definitions of limits in the home shard
--       2   hash: the map, see `shard_map.lua`
-- ARGV  2   'assign': assigns those limits to the shard that are nowhere
--           | 'move': each limit is on its way to the shard, and may be defined nowhere
--           | 'arrive': each limit that is on its way is in the shard that it goes to
--       3   name of the shard
--       4   by how many shards it divides keys, a space, and its server
--       then per limit: its name
-- Reply {epoch, the same as ARGV 4 as the map has it, per limit: the shard, or while it moves the shards that it leaves
--        and goes to, separated by a space}
--
-- If the map has another ARGV 4, nothing is assigned or moved: it is another shard with the same name.

local HOME = 'home'
local step, shard, identity = ARGV[2], ARGV[3], ARGV[4]

local epoch = tonumber(redis.call('HGET', KEYS[2], '@epoch') or '0')
local known = redis.call('HGET', KEYS[2], '@' .. shard)
local may_change = not known or known == identity

local function location_of(name)
  local entry = redis.call('HGET', KEYS[2], name)
  if entry then
    return string.match(entry, '^%d+ (.*)$')
  end
  return redis.call('HEXISTS', KEYS[1], name) == 1 and HOME or nil
end

-- Writes the new location, the epoch and the shard at once.
local function put(name, location)
  epoch = epoch + 1
  local number = format_integer(epoch)
  if location == HOME then
    redis.call('HSET', KEYS[2], '@epoch', number)
    redis.call('HDEL', KEYS[2], name)
  else
    redis.call('HSET', KEYS[2], '@epoch', number, '@' .. shard, identity, name, number .. ' ' .. location)
  end
  return location
end

local function assign(name, location)
  return location or put(name, shard)
end

local function move(name, location)
  local from, to = string.match(location or HOME, '^(%S+) ?(.*)$')
  if to == shard or to == '' and from == shard then
    return location or HOME
  end
  return to ~= '' and location or put(name, from .. ' ' .. shard)
end

local function arrive(name, location)
  local to = string.match(location or HOME, '^%S+ (%S+)$')
  return to == shard and put(name, to) or location or HOME
end

work_without_memory()
local change = { assign = assign, move = move, arrive = arrive }
local reply = { 0, known or identity }
for i = 5, #ARGV do
  local location = location_of(ARGV[i])
  reply[#reply + 1] = may_change and change[step](ARGV[i], location) or location or ''
end
reply[1] = epoch
return reply
