-- leases.lua: leases in a sorted set. A lease is a member whose score is its deadline (us).
-- The member WRITTEN records when a deadline was last written, as minus that time (us), so that it sorts before all
-- deadlines: so the deadlines can be corrected after the server's clock was set back.

local WRITTEN = ''

local function write_lease(set, member, deadline)
  redis.call('ZADD', set, deadline, member, -now, WRITTEN)
end

-- Remove a lease; with the last one the set is removed.
local function remove_lease(set, member)
  if redis.call('ZREM', set, member) == 1 and redis.call('ZCARD', set) == 1 then
    redis.call('ZREM', set, WRITTEN)
  end
end

-- Call this after claims were removed. Claims that are left go on under the lease that the worker has.
local function end_lease(workers, worker, claims)
  if redis.call('EXISTS', claims) == 0 then
    remove_lease(workers, worker)
  end
end

-- Lower each score above zero by `step` (us), to 1 at least.
local function move_back(set, step)
  local found, members = redis.call('ZRANGE', set, '(0', '+inf', 'BYSCORE', 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    members[i], members[i + 1] = math.max(1, found[i + 1] - step), found[i]
  end
  call_with('ZADD', set, members)
end

-- If the clock was set back since the leases of a set were written, move them back by the difference, so that each
-- lasts as long as it did. Call this before anything else is done with the set.
local function follow_clock(set)
  local written = -(redis.call('ZSCORE', set, WRITTEN) or 0)
  if written > now + FARTHEST then
    move_back(set, written - now)
    redis.call('ZADD', set, -now, WRITTEN)
  end
end
