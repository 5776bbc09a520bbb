-- slots.lua: concurrency limits: leases with a deadline. Each take is one slot, whatever its cost.
-- Twin: `slots.py`. The zset `entries` holds the leases: holder -> deadline (us). Its part of the state: tag, size,
-- and the longest lease (us) of these. A deadline farther ahead than that was written before the clock was set back.
-- Whoever takes a slot sets `holder` and `lease` (us) of the limit. Adds to a limit
--   longest_lease  as in the state
--   in_use         leases that have not expired; false until they are counted
--   last           the last deadline (us); false until it is read
--   taken          the lease (us) of the slot taken by this call; nil if none

local SLOTS_FORM, SLOTS_SIZE = '<BHd', 11
local algorithm = {}

-- The longest lease (us) there may be, for a state that does not record it. Twin: MAX_LEASE_SECONDS in
-- `celery_throttle/limits/limit.py`.
local LONGEST_LEASE = 3600000000

local function last_deadline(limit)
  limit.last = limit.last or tonumber(redis.call('ZRANGE', limit.entries, -1, -1, 'WITHSCORES')[2] or 0)
  return limit.last
end

function algorithm.read(limit, state, from)
  limit.in_use, limit.last, limit.longest_lease = false, false, LONGEST_LEASE
  if state then
    limit.longest_lease = select(3, struct.unpack(SLOTS_FORM, state, from))
  end
  return last_deadline(limit) <= now + limit.longest_lease + FARTHEST, true
end

-- No lease lasts longer from now on than it did before the clock was set back.
function algorithm.move_back(limit, state, from)
  if algorithm.read(limit, state, from) then
    return
  end
  limit.last = now + limit.longest_lease
  local deadline = format_integer(limit.last)
  for _, holder in ipairs(redis.call('ZRANGE', limit.entries, '(' .. deadline, '+inf', 'BYSCORE')) do
    redis.call('ZADD', limit.entries, deadline, holder)
  end
end

local function count_in_use(limit)
  limit.in_use = limit.in_use or redis.call('ZCOUNT', limit.entries, '(' .. format_integer(now), '+inf')
  return limit.in_use
end

function algorithm.check(limit)
  local over = count_in_use(limit) - limit.burst
  if over < 0 then
    return 0
  end
  local row = redis.call('ZRANGE', limit.entries, '(' .. format_integer(now), '+inf', 'BYSCORE',
                         'LIMIT', over, 1, 'WITHSCORES')
  return tonumber(row[2]) - now
end

-- The lease is written with the state: another take before that is of the same slot.
function algorithm.take(limit, at)
  limit.taken = at - now + limit.lease
end

local function lasts(limit)
  return math.max(0, last_deadline(limit) - now)
end

function algorithm.write(limit)
  local lease = limit.taken
  if lease then
    limit.longest_lease = count_in_use(limit) > 0 and math.max(limit.longest_lease, lease) or lease
    local lost = redis.call('ZREMRANGEBYSCORE', limit.entries, '-inf', format_integer(now))
    if lost > 0 then
      increase_total(string.match(limit.entries, '.*:entries:([^:]+)'), 'lost_slots', lost)
    end
    redis.call('ZADD', limit.entries, format_integer(now + lease), limit.holder)
    limit.taken, limit.in_use, limit.last = nil, false, math.max(last_deadline(limit), now + lease)
  end
  local us = lasts(limit)
  redis.call('PEXPIRE', limit.entries, expiry_ms(us))
  return struct.pack(SLOTS_FORM, SLOTS, SLOTS_SIZE, limit.longest_lease), us
end

function algorithm.remaining(limit)
  return math.max(0, limit.burst - count_in_use(limit)) * MILLION, lasts(limit)
end

function algorithm.mark()
  return 0, 0
end

function algorithm.settle()
  return false
end

return algorithm
