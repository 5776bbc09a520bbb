-- leave.lua: removes a limit from the shard that it leaves, see `shard_map.lua`. What was there is kept for `enter.lua`,
-- until the limit has gone.
-- KEYS  1-8  see `definitions.lua`
--       9-11 heads of names: with a field behind them, of pauses and of their origins; with a name behind it, of the zset
--            of the paused keys
-- ARGV  2    name of the limit
--       3    epoch of the move
--       4    name of the shard that it goes to
--       5    '1' if it has gone there already, as the map says: nothing is kept; nothing is done if the limit has come
--            back since
-- Reply {what was there, '' if it was never there, 1 if one of its limits has slots, else 0}: packed by cmsgpack, a table of
--         fields     {field, value, ...} of the hash of definitions
--         own_keys   {key, when (us) the first of its definitions or its weight ends, 0 if none does, ...}
--         pauses     {{field, when (us) it ends, 0 if it is not paused; the pause, its origin}, ...}
--         has_slots  whether one of its limits has slots
--         left       when (us) it was removed
-- Tasks that wait at the limit stay. The first worker that claims them lets them go where the limit is.

local name, epoch, target, has_gone = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local kept_field = '@left ' .. name
local own_keys = redis.call('ZRANGE', KEYS[7] .. name, 0, -1, 'WITHSCORES')

local function fields_of_limit()
  local fields = { name, 'weight ' .. name }
  for i = 1, #own_keys, 2 do
    fields[#fields + 1], fields[#fields + 2] = name .. ':' .. own_keys[i], 'weight ' .. name .. ':' .. own_keys[i]
  end
  return fields
end

-- Also those that have ended.
local function read_pauses()
  local found, keys = {}, redis.call('ZRANGE', KEYS[11] .. name, 0, -1)
  for i = 0, #keys do
    local field = i == 0 and name or name .. ':' .. keys[i]
    local pause = redis.call('GET', KEYS[9] .. field)
    -- Not now if there is none: the clock of the other server may be behind this one.
    local ends = pause and now + pause_left(KEYS[9] .. field, pause) or 0
    found[#found + 1] = { field, ends, pause or '', redis.call('GET', KEYS[10] .. field) or '' }
  end
  return found
end

local function keep(fields, pauses)
  local kept = { fields = {}, own_keys = own_keys, pauses = pauses, has_slots = false, left = now }
  for _, field in ipairs(fields) do
    local value = redis.call('HGET', KEYS[1], field)
    if value then
      kept.fields[#kept.fields + 1], kept.fields[#kept.fields + 2] = field, value
      local is_weight = string.sub(field, 1, 7) == 'weight '
      kept.has_slots = kept.has_slots or not is_weight and definition_in(value).has_slots
    end
  end
  if kept.fields[1] then -- otherwise an earlier call has done so
    redis.call('HSET', KEYS[8], kept_field, cmsgpack.pack(kept))
  end
end

work_without_memory()
local since, location = string.match(redis.call('HGET', KEYS[8], name) or '0 ', '^(%d+) (.*)$')
local is_older = tonumber(since) < tonumber(epoch)
if has_gone and location ~= target and not (location == '@' and is_older) then
  return { '', 0 }
end
local fields, pauses = fields_of_limit(), has_gone and {} or read_pauses()
if not has_gone then
  keep(fields, pauses)
end
if is_older or location == '@' then
  redis.call('HSET', KEYS[8], name, (is_older and epoch or since) .. ' ' .. target)
end
call_with('HDEL', KEYS[1], fields)
redis.call('SREM', KEYS[3], name)
redis.call('DEL', KEYS[7] .. name)
for _, pause in ipairs(pauses) do
  redis.call('DEL', KEYS[9] .. pause[1], KEYS[10] .. pause[1], KEYS[11] .. name)
end
redis.call('HDEL', KEYS[8], '@used-up ' .. name)
if has_gone then
  redis.call('HDEL', KEYS[8], kept_field)
end
local kept = redis.call('HGET', KEYS[8], kept_field) or ''
return { kept, kept ~= '' and cmsgpack.unpack(kept).has_slots and 1 or 0 }
