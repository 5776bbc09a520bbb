-- back.lua: claims that were not started go back to the head of their lines.
-- uses: leaving
--
-- KEYS  1   zset: workers -> end of their lease (us)
--       2   hash: the worker's claims
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   'own' (only the tokens given) | 'dead' (all, if its lease has run out)
--       4   how many at most
--       then tokens
-- Reply how many claims are left to give back.
-- A task that already waits again (a retry of a run whose worker died) keeps its newer message.

local now = clock(ARGV[1])
local workers, claims, worker = KEYS[1], KEYS[2], ARGV[2]
local tokens = {}
if ARGV[3] == 'dead' then
  local till = redis.call('ZSCORE', workers, worker)
  if till and tonumber(till) > now then
    return 0
  end
  tokens = redis.call('HKEYS', claims)
else
  for i = 5, #ARGV do
    tokens[i - 4] = ARGV[i]
  end
end

local most = math.min(#tokens, tonumber(ARGV[4]))
for i = 1, most do
  local claim = redis.call('HGET', claims, tokens[i])
  if claim then
    local line, about, id, score, packed = unpack(cmsgpack.unpack(claim))
    rejoin(line, about, id, score, packed, now, ARGV[1])
    give_slots_back(about, worker, tokens[i], now)
    redis.call('HDEL', claims, tokens[i])
  end
end
end_lease(workers, worker, claims)
return #tokens - most
