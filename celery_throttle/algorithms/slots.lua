-- slots.lua: concurrency limits: leases with a deadline. Each take is one slot, whatever its cost.
-- Twin: `slots.py`. The zset `entries` holds the leases: holder -> deadline (us). Its part of the state: tag, size,
--   longest    the longest lease (us) of these; a deadline farther ahead was written before the clock was set back
-- and only of an adaptive limit
--   learned    the number of slots in force, in millionths of a slot; 0 if all are
--   fell       when (us) an answer decreased it
--   good       good answers since then
-- Whoever takes a slot sets `holder` and `lease` (us) of the limit. Adds to a limit
--   longest_lease, learned, fell, good   as in the state
--   share          the slots in force, in millionths of all, rounded up
--   in_use         leases that have not expired; false until they are counted
--   last           the last deadline (us); false until it is read
--   taken          the lease (us) of the slot taken by this call; nil if none

local SLOTS_FORM, SLOTS_SIZE, LEARNED_FORM, LEARNED_SIZE = '<BHd', 11, '<ddd', 35
local SLOTS_KEPT, SLOTS_KEPT_AGAIN, PROBE, MOST_GOOD, MEMORY = 90, 70, 100, 1000, 3600000000
local algorithm = {}

-- The longest lease (us) there may be, for a state that does not record it. Twin: MAX_LEASE_SECONDS in
-- `celery_throttle/limits/limit.py`.
local LONGEST_LEASE = 3600000000

local function last_deadline(limit)
  limit.last = limit.last or tonumber(redis.call('ZRANGE', limit.entries, -1, -1, 'WITHSCORES')[2] or 0)
  return limit.last
end

local function slots_in_force(limit)
  return (limit.learned - limit.learned % MILLION) / MILLION
end

local function set_learned(limit, learned)
  local lowest = limit.parameters > 0 and parameter(limit, 1) or limit.burst
  limit.learned = math.max(lowest * MILLION, math.min(learned, limit.burst * MILLION))
  limit.share = math.ceil(slots_in_force(limit) * MILLION / limit.burst)
end

function algorithm.read(limit, state, from)
  local learned = limit.burst * MILLION
  limit.in_use, limit.last, limit.longest_lease, limit.fell, limit.good = false, false, LONGEST_LEASE, 0, 0
  if state then
    local _, size, longest = struct.unpack(SLOTS_FORM, state, from)
    limit.longest_lease = longest
    if size == LEARNED_SIZE then
      local stored
      stored, limit.fell, limit.good = struct.unpack(LEARNED_FORM, state, from + SLOTS_SIZE)
      learned = stored > 0 and stored or learned
    end
  end
  set_learned(limit, learned)
  return last_deadline(limit) <= now + limit.longest_lease + FARTHEST and limit.fell <= now + FARTHEST, true
end

-- No lease lasts longer from now on than it did before the clock was set back.
function algorithm.move_back(limit, state, from)
  if algorithm.read(limit, state, from) then
    return
  end
  limit.fell = math.min(limit.fell, now)
  limit.last = math.min(limit.last, now + limit.longest_lease)
  local deadline = format_integer(now + limit.longest_lease)
  for _, holder in ipairs(redis.call('ZRANGE', limit.entries, '(' .. deadline, '+inf', 'BYSCORE')) do
    redis.call('ZADD', limit.entries, deadline, holder)
  end
end

local function count_in_use(limit)
  limit.in_use = limit.in_use or redis.call('ZCOUNT', limit.entries, '(' .. format_integer(now), '+inf')
  return limit.in_use
end

function algorithm.check(limit)
  local over = count_in_use(limit) - slots_in_force(limit)
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
    -- Before what needs no memory: a server that is out of memory refuses the slot at its first write.
    redis.call('ZADD', limit.entries, format_integer(now + lease), limit.holder)
    local lost = redis.call('ZREMRANGEBYSCORE', limit.entries, '-inf', format_integer(now))
    if lost > 0 then
      increase_total(string.match(limit.entries, ':entries:([^:]+)'), 'lost_slots', lost)
    end
    limit.taken, limit.in_use, limit.last = nil, false, math.max(last_deadline(limit), now + lease)
  end
  local us = lasts(limit)
  redis.call('PEXPIRE', limit.entries, expiry_ms(us))
  if limit.parameters == 0 then
    return struct.pack(SLOTS_FORM, SLOTS, SLOTS_SIZE, limit.longest_lease), us
  end
  local learned = limit.learned < limit.burst * MILLION and limit.learned or 0
  return struct.pack(SLOTS_FORM, SLOTS, LEARNED_SIZE, limit.longest_lease)
    .. struct.pack(LEARNED_FORM, learned, limit.fell, limit.good), math.max(us, limit.share < MILLION and MEMORY or 0)
end

function algorithm.remaining(limit)
  return math.max(0, slots_in_force(limit) - count_in_use(limit)) * MILLION, lasts(limit)
end

function algorithm.mark()
  return 0, 0
end

function algorithm.settle()
  return false
end

local function fall(limit)
  local in_force = slots_in_force(limit)
  local kept = in_force * (limit.good < in_force and SLOTS_KEPT_AGAIN or SLOTS_KEPT)
  set_learned(limit, math.min(in_force - 1, (kept - kept % 100) / 100) * MILLION)
  limit.fell, limit.good = now, 0
end

-- Learn from an answer, see `learn.lua`. Returns whether the limit has changed.
function algorithm.learn(limit, answer)
  local latency, took = parameter(limit, 2), answer.took
  if now - took < limit.fell then
    return false
  elseif answer.kind == 'overloaded' and limit.good == 0 then
    return false
  elseif answer.kind ~= '' or (latency > 0 and took > latency) then
    fall(limit)
    return true
  end
  local learned, good = limit.learned, limit.good
  if 2 * count_in_use(limit) < slots_in_force(limit) then
    return false
  end
  set_learned(limit, learned + MILLION / (PROBE * PROBE) * (PROBE + good))
  limit.good = math.min(MOST_GOOD, good + 1)
  return limit.learned ~= learned or limit.good ~= good
end

return algorithm
