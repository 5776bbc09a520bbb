-- leases.lua: sorted sets of times that go on being right when the server's clock is set back.
-- uses: clock, exact, bulk_commands
--
-- Library. A lease is a member of a zset, with its deadline (us) as the score. The member WRITTEN tells when
-- a deadline was last written: minus that time (us), so that it is below all deadlines. Deadlines that were
-- written by a later clock than now are moved back by the difference: each lease lasts as long as it did.

local WRITTEN = ''

-- Gives each member that has a score above zero one that is lower by `step` (us).
local function move_back(set, step)
  local found, members = redis.call('ZRANGE', set, '(0', '+inf', 'BYSCORE', 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    members[i], members[i + 1] = whole(math.max(1, found[i + 1] - step)), found[i]
  end
  call_with('ZADD', set, members)
end

-- How far (us) the clock was set back since a zset was written; 0 if it was not.
local function clock_step(set, now)
  local written = -(redis.call('ZSCORE', set, WRITTEN) or 0)
  return written > now + FARTHEST and written - now or 0
end

-- Has to come before anything else is done with the leases of a zset.
local function follow_clock(set, now)
  local step = clock_step(set, now)
  if step > 0 then
    move_back(set, step)
    redis.call('ZADD', set, whole(-now), WRITTEN)
  end
end

local function write_lease(set, member, deadline, now)
  redis.call('ZADD', set, whole(deadline), member, whole(-now), WRITTEN)
end

-- Removes a lease, and the zset with the last of them.
local function remove_lease(set, member)
  if redis.call('ZREM', set, member) == 1 and redis.call('ZCARD', set) == 1 then
    redis.call('ZREM', set, WRITTEN)
  end
end
