-- key_cap.lua: the keys of a limit that are in use, where `max-keys` says how many there may be.
-- uses: clock, exact
--
-- Library, of which nothing is made before it is called. Twin: `celery_throttle/algorithms/key_cap.py`.
-- The crowd of a name is a zset: entries of a key, by which the key is known -> until when (us) anything
-- of it is in use, and LINED more for each line that holds tasks of it.

-- Later than any time.
local LINED = 2 * MAX_EXACT

-- How long (us) to wait for what nobody knows the end of.
local UNKNOWN = 1000000

local crowd = {}

local function expire(keys, now, given)
  local last = tonumber(redis.call('ZRANGE', keys, -1, -1, 'WITHSCORES')[2] or 0)
  if last >= LINED then
    redis.call('PERSIST', keys)
  else
    redis.call('PEXPIRE', keys, expiry(last - now, given))
  end
end

-- Microseconds until nothing of a ref is in use.
local function busy(ref, now)
  local longest = 0
  for _, limit in ipairs(ref.limits) do
    longest = math.max(longest, (select(2, limit.algorithm.left(limit, now))))
  end
  return longest
end

-- The state of a ref was written. Keys of which nothing is in use any more are forgotten.
function crowd.use(ref, now, given)
  local score = tonumber(redis.call('ZSCORE', ref.crowd, ref.entries) or 0)
  local lines = score - score % LINED
  redis.call('ZREMRANGEBYSCORE', ref.crowd, '-inf', whole(now))
  redis.call('ZADD', ref.crowd, whole(lines + now + busy(ref, now)), ref.entries)
  expire(ref.crowd, now, given)
end

-- The leases of a key go on.
function crowd.renew(keys, entries, till, now, given)
  local score = tonumber(redis.call('ZSCORE', keys, entries) or 0)
  local lines = score - score % LINED
  if score > 0 and score < lines + till then
    redis.call('ZADD', keys, whole(lines + till), entries)
    expire(keys, now, given)
  end
end

-- Whether nothing is known of the key of a ref.
local function is_new(ref, now)
  return busy(ref, now) == 0
      and tonumber(redis.call('ZSCORE', ref.crowd, ref.entries) or 0) <= now
end

-- The ref for whose key there is no room, of several the one that waits longest, and how long (us) until
-- the earliest key in use is forgotten; -1 if there can never be room for all of them. 0 and 0 if there
-- is room.
function crowd.full(refs, now)
  local new, at, longest = {}, 0, 0
  for i, ref in ipairs(refs) do
    if ref.crowd and is_new(ref, now) then
      new[ref.crowd] = (new[ref.crowd] or 0) + 1
      local over = new[ref.crowd] - ref.max_keys
      if over > 0 then
        return i, -1
      end
      over = over + redis.call('ZCOUNT', ref.crowd, '(' .. whole(now), '+inf')
      if over > 0 then
        local row = redis.call('ZRANGE', ref.crowd, '(' .. whole(now), '+inf', 'BYSCORE',
                               'LIMIT', over - 1, 1, 'WITHSCORES')
        local till = tonumber(row[2])
        local wait = till < LINED and till - now or UNKNOWN
        if wait > longest then
          at, longest = i, wait
        end
      end
    end
  end
  return at, longest
end

-- A line that holds tasks of a key begins (1) or ends (-1).
function crowd.line(keys, entries, change, now, given)
  if tonumber(redis.call('ZINCRBY', keys, whole(change * LINED), entries)) <= now then
    redis.call('ZREM', keys, entries)
  end
  expire(keys, now, given)
end

-- What was used of a key is forgotten; lines that hold tasks of it are not.
function crowd.forget(keys, entries)
  local score = tonumber(redis.call('ZSCORE', keys, entries) or 0)
  if score >= LINED then
    redis.call('ZADD', keys, whole(score - score % LINED), entries)
  else
    redis.call('ZREM', keys, entries)
  end
end

return crowd
