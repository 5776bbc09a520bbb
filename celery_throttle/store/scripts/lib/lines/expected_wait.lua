-- expected_wait.lua: the expected wait (us) of the task at a position of its line, and the requirement that causes
-- it. Lines at one limit are served in turns, those of higher ranks later: so before the task at position n there are
-- n tasks of each other line, if all have the same rank and weight. Other ranks and weights are not counted. Nobody
-- knows when a slot is released: that counts as no wait.
-- uses: line_data, scores, tags, arithmetic, clock

local function expected_wait(requirements, descriptor, rank, position, bottleneck)
  local longest, slowest = 0, math.max(1, bottleneck)
  local next_rank = '(' .. format_integer((rank + 1) * RANK_SPAN)
  for i, requirement in ipairs(requirements) do
    local lines = redis.call('ZCOUNT', descriptor.limits[i][WAITING], '-inf', next_rank)
    local before = math.max(position - 1, math.min(requirement.waiting, position * lines))
    for _, limit in ipairs(requirement.limits) do
      local own = requirement.pause
      if limit.tag ~= SLOTS then
        own = math.max(own, limit.algorithm.check(limit, true))
          + math.ceil(before * limit.cost / MILLION * limit.p / limit.q)
      end
      if own > longest then
        longest, slowest = own, i
      end
    end
  end
  return longest, slowest
end
