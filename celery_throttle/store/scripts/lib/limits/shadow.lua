-- shadow.lua: shadow limits: they count the requests that they would refuse, and refuse nothing.
-- uses: clock, definition, counters
-- Their state is that of other limits, under a key of its own. It begins anew with each definition.
-- Returns a function of requirements whose costs were taken for starts at `at` (us), and the number of requests that this
-- was for. A request that one of the shadow limits would have refused takes nothing from them.

local function read_shadows(requirement, key)
  local shadows, limits, from = requirement.shadows, {}, requirement.shadows.from
  local state, state_from = redis.call('GET', key), 9
  if state and struct.unpack('<d', state) ~= requirement.since then
    state = false
  end
  for n = 1, shadows.count do
    limits[n], from = parse_limit(shadows.packed, from, requirement)
    local limit = limits[n]
    limit.algorithm, limit.entries = algorithm_of(limit.tag, true), requirement.entries .. '+shadow' .. n
    local tag, size = 0, 0
    if state and state_from < #state then
      tag, size = struct.unpack('<BH', state, state_from)
    end
    if tag ~= limit.tag or not limit.algorithm.read(limit, state, state_from) then
      limit.algorithm.read(limit, false, 0)
    end
    state_from = state_from + size
  end
  return limits
end

local function would_refuse(limits)
  for _, limit in ipairs(limits) do
    if limit.cost > limit.burst * MILLION or limit.algorithm.check(limit, true) > 0 then
      return true
    end
  end
  return false
end

local function write_shadows(limits, key, since)
  local state, lasts = struct.pack('<d', since), 0
  for _, limit in ipairs(limits) do
    local part, own = limit.algorithm.write(limit)
    state, lasts = state .. part, math.max(lasts, own)
  end
  redis.call('SET', key, state, 'PX', expiry_ms(lasts))
end

local function charge_shadows(requirement, at, requests)
  local key = requirement.state .. '+shadow'
  local limits, refused = read_shadows(requirement, key), 0
  for _ = 1, requests do
    for _, limit in ipairs(limits) do
      limit.cost = requirement.limits[1].cost / requests
    end
    if would_refuse(limits) then
      refused = refused + 1
    else
      for _, limit in ipairs(limits) do
        limit.algorithm.take(limit, at)
      end
    end
  end
  if refused < requests then
    write_shadows(limits, key, requirement.since)
  end
  if refused > 0 then
    increase_total(requirement.name, 'shadow_refused', refused)
  end
end

return function(requirements, at, requests)
  for _, requirement in ipairs(requirements) do
    if requirement.shadows then
      charge_shadows(requirement, at, requests)
    end
  end
end
