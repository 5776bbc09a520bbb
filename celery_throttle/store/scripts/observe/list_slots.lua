-- list_slots.lua: lists the holders of slots of a limit and key.
-- KEYS  1   entries
--       2   head of the keys `claims`
-- ARGV  2   how many at most
-- Reply {how many slots are in use; {holder, when (us from now) its lease ends, task id or ''}, ...}
--       If tasks are large, the ids of the last ones are left out.

local from = '(' .. format_integer(now)
local reply = { redis.call('ZCOUNT', KEYS[1], from, '+inf') }
local found = redis.call('ZRANGE', KEYS[1], from, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
local bytes = 0
for i = 1, #found, 2 do
  local worker, token = string.match(found[i], '^(%S+) (%d+)$')
  local claim = worker and bytes < BATCH_BYTES and redis.call('HGET', KEYS[2] .. worker, token)
  bytes = bytes + (claim and #claim or 0)
  -- Of a claim only the line, the descriptor and the id are unpacked, not the message.
  local id = claim and select(4, cmsgpack.unpack_limit(claim, 3, 1)) or ''
  reply[#reply + 1] = { found[i], found[i + 1] - now, id }
end
return reply
