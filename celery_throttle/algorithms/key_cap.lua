-- key_cap.lua: which keys of a limit are in use, where `max-keys` bounds their number.
-- Twin: `memory.py`. The key cap of a name is a zset: `entries` of a key, which identify the key -> until when (us)
-- anything of the key is in use, plus LINE_UNIT for each line that holds tasks of the key.

local LINE_UNIT = 2 * MAX_EXACT

-- How long (us) to wait for a key that is in use by a line: nobody knows when the line ends.
local LINE_CHECK = 1000000

local caps = {}

local function expire(cap)
  local last = tonumber(redis.call('ZRANGE', cap, -1, -1, 'WITHSCORES')[2] or 0)
  if last >= LINE_UNIT then
    redis.call('PERSIST', cap)
  else
    redis.call('PEXPIRE', cap, expiry_ms(last - now))
  end
end

local function score_of(cap, entries)
  return tonumber(redis.call('ZSCORE', cap, entries) or 0)
end

-- Microseconds until nothing of a requirement is in use.
local function busy_time(requirement)
  local longest = 0
  for _, limit in ipairs(requirement.limits) do
    longest = math.max(longest, (select(2, limit.algorithm.remaining(limit))))
  end
  return longest
end

-- Note that the state of a requirement was written, and forget the keys that are no longer in use.
function caps.note_use(requirement)
  local cap, entries = requirement.key_cap, requirement.entries
  local score = score_of(cap, entries)
  local lines = score - score % LINE_UNIT
  redis.call('ZREMRANGEBYSCORE', cap, '-inf', format_integer(now))
  redis.call('ZADD', cap, format_integer(lines + now + busy_time(requirement)), entries)
  expire(cap)
end

-- Note that the leases of a key were renewed until a deadline (us).
function caps.renew(cap, entries, deadline)
  local score = score_of(cap, entries)
  local lines = score - score % LINE_UNIT
  if score > 0 and score < lines + deadline then
    redis.call('ZADD', cap, format_integer(lines + deadline), entries)
    expire(cap)
  end
end

-- Returns the requirement for whose key there is no room (if several, that which waits longest), and how long (us)
-- until the next key is free; -1 if there can never be room for all of them. 0 and 0 if there is room.
function caps.find_full(requirements)
  local new_keys, full, longest = {}, 0, 0
  for i, requirement in ipairs(requirements) do
    local cap = requirement.key_cap
    if cap and busy_time(requirement) == 0 and score_of(cap, requirement.entries) <= now then
      new_keys[cap] = (new_keys[cap] or 0) + 1
      local over = new_keys[cap] - requirement.max_keys
      if over > 0 then
        return i, -1
      end
      local from = '(' .. format_integer(now)
      over = over + redis.call('ZCOUNT', cap, from, '+inf')
      if over > 0 then
        local row = redis.call('ZRANGE', cap, from, '+inf', 'BYSCORE', 'LIMIT', over - 1, 1, 'WITHSCORES')
        local deadline = tonumber(row[2])
        local wait = deadline < LINE_UNIT and deadline - now or LINE_CHECK
        if wait > longest then
          full, longest = i, wait
        end
      end
    end
  end
  return full, longest
end

-- Note that a line that holds tasks of a key begins (1) or ends (-1).
function caps.count_line(cap, entries, change)
  if tonumber(redis.call('ZINCRBY', cap, format_integer(change * LINE_UNIT), entries)) <= now then
    redis.call('ZREM', cap, entries)
  end
  expire(cap)
end

-- Forget the use of a key, but not the lines that hold tasks of it.
function caps.forget(cap, entries)
  local score = score_of(cap, entries)
  if score >= LINE_UNIT then
    redis.call('ZADD', cap, format_integer(score - score % LINE_UNIT), entries)
  else
    redis.call('ZREM', cap, entries)
  end
end

return caps
