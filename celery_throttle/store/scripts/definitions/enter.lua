-- enter.lua: puts a limit in force in the shard that it moves to, as it was in the shard that it has left. What could
-- have been granted there counts as in use, for each key as well: the limit is used up. Once for each move.
-- KEYS  1-8  see `definitions.lua`
--       9-11 as for `leave.lua`
-- ARGV  2    name of the limit
--       3    epoch of the move
--       4    what was there, as `leave.lua` replies it
--       5    name of the shard that it has left
--       6    name of this shard
--       7    about: JSON, who does it and why
-- Reply for how long (us) it grants nothing at all, and then what its limits allow from an empty start

-- For how long (us) after a limit was left units may start that were granted there: they are booked ahead.
local BOOKED_AHEAD = 100000

local name, epoch, packed, source, own, about = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local function put_pause(pause)
  local field, ends, value, origin = unpack(pause)
  if ends > now then
    redis.call('SET', KEYS[9] .. field, value, 'PX', expiry_ms(ends - now))
    redis.call('SET', KEYS[10] .. field, origin, 'PX', expiry_ms(ends - now))
    if field ~= name then
      redis.call('ZADD', KEYS[11] .. name, format_integer(ends), string.sub(field, #name + 2))
      local last = redis.call('ZRANGE', KEYS[11] .. name, -1, -1, 'WITHSCORES')[2]
      redis.call('PEXPIRE', KEYS[11] .. name, expiry_ms(last - now))
    end
  end
end

work_without_memory()
local used_up, of_move = used_up_since(KEYS[8], name)
if of_move >= tonumber(epoch) then
  return math.max(0, used_up - now)
end
local kept = packed ~= '' and cmsgpack.unpack(packed) or { fields = {}, own_keys = {}, pauses = {}, left = now }
used_up = math.max(now, kept.left) + BOOKED_AHEAD
for i = 1, #kept.own_keys, 2 do
  redis.call('ZADD', KEYS[7] .. name, kept.own_keys[i + 1], kept.own_keys[i])
end
for i = 1, #kept.fields, 2 do
  local field, value = kept.fields[i], kept.fields[i + 1]
  if string.sub(field, 1, 7) ~= 'weight ' then
    value = pack_record(layers_in(value), used_up, used_up, used_up)
  end
  redis.call('HSET', KEYS[1], field, value)
end
if kept.fields[1] == name then
  redis.call('SADD', KEYS[3], name)
end
for _, pause in ipairs(kept.pauses) do
  put_pause(pause)
end
record_change('shard', name, source, own, about)
if own ~= 'home' then
  note_here(KEYS[8], name, tonumber(epoch))
end
redis.call('HSET', KEYS[8], '@used-up ' .. name, format_integer(used_up) .. ' ' .. epoch) -- last: now it is done
return used_up - now
