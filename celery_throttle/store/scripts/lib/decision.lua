-- decision.lua: the atomic decision: checks all limits of a call, then takes from all of them or none.
-- Twin: `celery_throttle/algorithms/decision.py`.

-- Returns how long (us) to wait until all limits allow their cost, and what causes the longest wait: the index of the
-- requirement, 0 if none, and which of its limits. The wait is -1 if a cost exceeds the burst. Sets `slots_full` of
-- the requirements: whether all slots of one are in use; and `bookable`: whether a start may be booked after the wait.
-- A slot cannot be booked ahead, since the lease that ends next may be renewed; nor can a start under limits that end
-- before it.
local function decide(requirements, can_park)
  local wait, bottleneck, component = 0, 0, 1
  requirements.slots_full, requirements.bookable = false, true
  for i = 1, #requirements do
    local requirement = requirements[i]
    local limits = requirement.limits
    if requirement.pause > wait then
      wait, bottleneck, component = requirement.pause, i, 1
    end
    for n = 1, #limits do
      local limit = limits[n]
      if limit.cost > limit.burst * MILLION and limit.tag ~= SLOTS then
        return -1, i, n
      end
      local own = limit.algorithm.check(limit, can_park)
      if own > 0 and limit.tag == SLOTS then
        requirements.slots_full, requirements.bookable = true, false
      end
      if requirement.ends and own > requirement.ends - now then
        own, requirements.bookable = requirement.ends - now, false -- other limits are in force then
      end
      if own > wait then
        wait, bottleneck, component = own, i, n
      end
    end
  end
  return wait, bottleneck, component
end

-- Take the cost of every requirement for a start at `at` (us, not before now). The next decision of this call counts
-- it; nothing is written.
local function charge(requirements, at)
  for i = 1, #requirements do
    local limits = requirements[i].limits
    for n = 1, #limits do
      limits[n].algorithm.take(limits[n], at)
    end
  end
end

local function write_states(requirements)
  for i = 1, #requirements do
    if requirements[i].limits[1] then
      write_state(requirements[i])
    end
  end
end

-- Take the cost of every requirement for starts at `at` of some requests, one by default, and write that.
local function commit(requirements, at, requests)
  charge(requirements, at)
  write_states(requirements)
  if requirements.has_shadows then
    shadow()(requirements, at, requests or 1)
  end
  local granted = 0 -- of one name: its keys follow each other, and are counted at once
  for i = 1, #requirements do
    local requirement, following = requirements[i], requirements[i + 1]
    granted = granted + requirement.limits[1].cost
    if not following or following.name ~= requirement.name then
      increase_total(requirement.name, 'granted', granted)
      granted = 0
    end
  end
end

-- Find the requirement whose key has to wait longest for room in its key cap. Returns its index, and how long (us) it
-- waits: -1 if there can never be room. 0 and 0 if there is room for all.
local function find_full_key_cap(requirements)
  for i = 1, #requirements do
    if requirements[i].key_cap then
      return key_cap().find_full(requirements)
    end
  end
  return 0, 0
end
