-- assign.lua: changes the map of limits to shards, in the home shard.
-- KEYS  1   hash: definitions of limits in the home shard
--       2   hash: the map, see `shard_map.lua`
-- ARGV  2   'assign': assigns those limits to the shard that are nowhere
--           | 'move': each limit is on its way to the shard, and may be defined nowhere
--           | 'arrive': each limit that is on its way is in the shard that it goes to
--           | 'repeat': each limit is in the shard, since an epoch, and the map may have been lost. It is there unless the
--             map has a later answer
--       3   name of the shard
--       4   by how many shards it divides keys, a space, and its server
--       5   the least epoch of the answer: a shard knows of this one
--       then per limit: its name; for 'repeat' also the epoch since which it is there
-- Reply {epoch, the same as ARGV 4 as the map has it, per limit: the shard, or while it moves the shards that it leaves
--        and goes to, separated by a space; for 'repeat' after '@' if the home shard has a definition as well}
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
    local location = string.match(entry, '^%d+ (.*)$')
    return location == '@' and HOME or location
  end
  return redis.call('HEXISTS', KEYS[1], name) == 1 and HOME or nil
end

-- Writes the new location, the epoch and the shard at once.
local function put(name, location)
  epoch = epoch + 1
  local number = format_integer(epoch)
  redis.call('HSET', KEYS[2], '@epoch', number, '@' .. shard, identity, name,
             number .. ' ' .. (location == HOME and '@' or location))
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

-- That the limit is in the shard can be later than the map only if the map has been lost.
local function repeat_location(name, location, since)
  local entry = redis.call('HGET', KEYS[2], name)
  if location ~= shard and since > tonumber(string.match(entry or '0', '^%d+')) then
    location = put(name, shard)
  end
  local is_double = location ~= HOME and redis.call('HEXISTS', KEYS[1], name) == 1
  return (is_double and '@' or '') .. location
end

work_without_memory()
if tonumber(ARGV[5]) > epoch then
  epoch = tonumber(ARGV[5])
  redis.call('HSET', KEYS[2], '@epoch', format_integer(epoch))
end
local change = { assign = assign, move = move, arrive = arrive, ['repeat'] = repeat_location }
local reply = { 0, known or identity }
for i = 6, #ARGV, step == 'repeat' and 2 or 1 do
  local location = location_of(ARGV[i])
  local since = step == 'repeat' and tonumber(ARGV[i + 1])
  reply[#reply + 1] = may_change and change[step](ARGV[i], location, since) or location or ''
end
reply[1] = epoch
return reply
