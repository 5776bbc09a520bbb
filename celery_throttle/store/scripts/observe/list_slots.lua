-- list_slots.lua: lists the holders of slots of a limit and key.
-- KEYS  1   entries
-- ARGV  2   how many at most
-- Reply {how many slots are in use; {holder, when (us from now) its lease ends}, ...}

local from = '(' .. format_integer(now)
local reply = { redis.call('ZCOUNT', KEYS[1], from, '+inf') }
local found = redis.call('ZRANGE', KEYS[1], from, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
for i = 1, #found, 2 do
  reply[#reply + 1] = { found[i], found[i + 1] - now }
end
return reply
