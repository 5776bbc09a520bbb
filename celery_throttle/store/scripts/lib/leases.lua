-- leases.lua: leases in a sorted set. A lease is a member whose score is its deadline (us).
-- uses: clock
-- The member WRITTEN records when a deadline was last written, as minus that time (us), so that it sorts before all
-- deadlines. `lease_clock.lua` needs it to correct the deadlines after the clock was set back.

local WRITTEN = ''

local function write_lease(set, member, deadline)
  redis.call('ZADD', set, format_integer(deadline), member, format_integer(-now), WRITTEN)
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
