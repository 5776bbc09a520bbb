-- requeue.lua: claims go back to the head of their lines.
-- uses: line_removal
--
-- KEYS  1   zset: workers -> end of their lease (us)
--       2   hash: the worker's claims
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   'own' (only the tokens given) | 'dead' (all, if its lease has run out)
--       4   how many at most
--       then tokens; one with a '-' before it was not delivered: Celery has not had its message
-- Reply how many claims are left to give back.
-- A task that already waits again (a retry of a run whose worker died) keeps its newer message. Whether a
-- worker that died had delivered a message nobody knows: it counts as delivered, as it does to a broker.

local now = clock(ARGV[1])
local workers, claims, worker = KEYS[1], KEYS[2], ARGV[2]
local tokens, undelivered = {}, {}
if ARGV[3] == 'dead' then
  local till = redis.call('ZSCORE', workers, worker)
  if till and tonumber(till) > now then
    return 0
  end
  tokens = redis.call('HKEYS', claims)
else
  for i = 5, #ARGV do
    local token = string.gsub(ARGV[i], '^%-', '')
    tokens[i - 4], undelivered[token] = token, token ~= ARGV[i]
  end
end

-- Marks a message as redelivered: in its head, whose length is in bytes 2 to 5, and which begins with byte
-- 6, '{'. What is no such message is left as it is. See `celery_throttle/messages/packing.py`.
local function redelivered(packed)
  local row, mark = cmsgpack.unpack(packed), '"redelivered": true, '
  local message = row[5]
  local marked = string.sub(message, 7, 6 + #mark) == mark
  if marked or string.sub(message, 1, 1) ~= '1' or string.sub(message, 6, 6) ~= '{' then
    return packed
  end
  local length = struct.pack('<I4', struct.unpack('<I4', message, 2) + #mark)
  row[5] = '1' .. length .. '{' .. mark .. string.sub(message, 7)
  return cmsgpack.pack(row)
end

local most = math.min(#tokens, tonumber(ARGV[4]))
for i = 1, most do
  local claim = redis.call('HGET', claims, tokens[i])
  if claim then
    local line, about, id, score, packed = unpack(cmsgpack.unpack(claim))
    local back = undelivered[tokens[i]] and packed or redelivered(packed)
    rejoin(line, about, id, score, back, now, ARGV[1])
    give_slots_back(about, worker, tokens[i], now)
    redis.call('HDEL', claims, tokens[i])
  end
end
end_lease(workers, worker, claims)
return #tokens - most
