-- lease_clock.lua: keeps sorted sets of times right after the server's clock was set back.
-- uses: leases, arithmetic, bulk_commands

-- Lower each score above zero by `step` (us), to 1 at least.
local function move_back(set, step)
  local found, members = redis.call('ZRANGE', set, '(0', '+inf', 'BYSCORE', 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    members[i], members[i + 1] = format_integer(math.max(1, found[i + 1] - step)), found[i]
  end
  call_with('ZADD', set, members)
end

-- If the clock was set back since the leases of a set were written, move them back by the difference, so that each
-- lasts as long as it did. Call this before anything else is done with the set.
local function follow_clock(set)
  local written = -(redis.call('ZSCORE', set, WRITTEN) or 0)
  if written > now + FARTHEST then
    move_back(set, written - now)
    redis.call('ZADD', set, format_integer(-now), WRITTEN)
  end
end
