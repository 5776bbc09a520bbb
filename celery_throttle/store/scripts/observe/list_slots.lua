-- list_slots.lua: lists the holders of slots of a limit and key.
-- uses: clock
-- KEYS  1   entries
--       2   head of the keys `claims`
-- ARGV  1   now (us), or '' for the server's clock
--       2   how many at most
-- Reply {how many slots are in use; {holder, when (us from now) its lease ends, task id or ''}, ...}

local from = '(' .. format_integer(now)
local reply = { redis.call('ZCOUNT', KEYS[1], from, '+inf') }
local found = redis.call('ZRANGE', KEYS[1], from, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
for i = 1, #found, 2 do
  local worker, token = string.match(found[i], '^(%S+) (%d+)$')
  local claim = worker and redis.call('HGET', KEYS[2] .. worker, token)
  reply[#reply + 1] = { found[i], found[i + 1] - now, claim and cmsgpack.unpack(claim)[3] or '' }
end
return reply
