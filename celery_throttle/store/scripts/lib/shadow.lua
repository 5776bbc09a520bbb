-- shadow.lua: shadow limits: they count the requests that they would refuse, and refuse nothing.
-- Their state is that of other limits, under a key of its own. It begins anew with each definition.

local function charge_shadows(requirement, at, requests)
  local state = requirement.state .. '+shadow'
  local own, refused = { { limits = requirement.shadows, state = state, since = requirement.since, pause = 0 } }, 0
  if not read_state(own[1], redis.call('GET', state)) then
    read_state(own[1], false)
  end
  for _, limit in ipairs(requirement.shadows) do
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
