-- shadow.lua: shadow limits: they count the requests that they would refuse, and refuse nothing.
-- Their state is that of other limits, under a key of its own. It begins anew with each definition.

-- Returns a requirement of the shadow limits of another one.
local function read_shadows(requirement)
  local shadows, from = requirement.shadows, requirement.shadows.from
  local own = { state = requirement.state .. '+shadow', since = requirement.since, pause = 0, limits = {} }
  for n = 1, shadows.count do
    own.limits[n], from = parse_limit(shadows.packed, from, own)
    own.limits[n].algorithm = algorithm_of(own.limits[n].tag, true)
    own.limits[n].entries = requirement.entries .. '+shadow' .. n
  end
  if not read_state(own, redis.call('GET', own.state)) then
    read_state(own, false)
  end
  return own
end

local function charge_shadows(requirement, at, requests)
  local own, refused = { read_shadows(requirement) }, 0
  for _, limit in ipairs(own[1].limits) do
    limit.cost = requirement.limits[1].cost / requests
  end
  for _ = 1, requests do
    if decide(own, true) == 0 then
      charge(own, at)
    else
      refused = refused + 1
    end
  end
  if refused < requests then
    write_states(own)
  end
  if refused > 0 then
    increase_total(requirement.name, 'shadow_refused', refused)
  end
end

-- Charge requirements whose costs were taken for starts at `at` (us) of a number of requests. A request that one of the
-- shadow limits would have refused takes nothing from them.
return function(requirements, at, requests)
  for _, requirement in ipairs(requirements) do
    if requirement.shadows then
      charge_shadows(requirement, at, requests)
    end
  end
end
