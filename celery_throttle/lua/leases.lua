-- leases.lua: sorted sets of deadlines that go on being right when the server's clock is set back.
-- uses: clock, exact
--
-- Library. A lease is a member of a zset, with its deadline (us) as the score. The member WRITTEN tells when
-- a deadline was last written: minus that time (us), so that it is below all deadlines. Deadlines that were
-- written by a later clock than now are moved back by the difference: each lease lasts as long as it did.

local WRITTEN = ''

-- How many members one command writes at most: more than some 8,000 values do not fit on Lua's stack.
local MEMBERS = 1000

-- Lets each member that has a score above zero have one lower by `step` (us).
local function move_back(set, step)
  local found, pairs_of = redis.call('ZRANGE', set, '(0', '+inf', 'BYSCORE', 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    pairs_of[i], pairs_of[i + 1] = whole(found[i + 1] - step), found[i]
  end
  for i = 1, #found, 2 * MEMBERS do
    redis.call('ZADD', set, unpack(pairs_of, i, math.min(#found, i + 2 * MEMBERS - 1)))
  end
end

-- How far (us) the clock was set back since a zset was written; 0 if it was not.
local function clock_step(set, now)
  local written = -tonumber(redis.call('ZSCORE', set, WRITTEN) or 0)
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

-- Removes the leases that have run out.
local function end_leases(set, now)
  redis.call('ZREMRANGEBYSCORE', set, '(0', whole(now))
end

local function count_leases(set, now)
  return redis.call('ZCOUNT', set, '(' .. whole(now), '+inf')
end
