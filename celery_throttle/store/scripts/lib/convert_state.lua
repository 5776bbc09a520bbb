-- convert_state.lua: converts a state that was written under another definition, before its limits were used up, or by
-- a clock that was set back since. Units drain by the definition under which they were written until it was replaced,
-- then they count as taken at that moment. Twin: `adopt` in `celery_throttle/algorithms/definition.py`, which has the
-- whole rule.

-- For each part of a state the amount in use at a time, without slots: their holders stay as they are. Also the
-- position of the part of slots, false if there is none.
local function amounts_in_use(state, at)
  local found, from, slots_from = {}, 9, false
  while from < #state do
    local tag, size = struct.unpack('<BH', state, from)
    if tag == SLOTS then
      slots_from = from
    else
      found[#found + 1] = algorithm_of(tag, true).in_use(state, from, at)
    end
    from = from + size
  end
  return found, slots_from
end

-- Carry the amounts in use under another definition over to the limits in force. Returns whether the state has to be
-- written, since it depends on the clock.
local function carry_over(requirement, state, since, old_since, used_up)
  -- The definition of the state was replaced by the one in force, or before by others.
  local replaced = since == old_since and requirement.since or since
  local found, slots_from = amounts_in_use(state, math.min(replaced, now))
  if since < used_up then
    found = { math.huge }
  end
  local part, has_moved = 0, false
  for _, limit in ipairs(requirement.limits) do
    local algorithm = algorithm_of(limit.tag, true)
    if not algorithm.read(limit, limit.tag == SLOTS and slots_from and state, slots_from) then
      algorithm.move_back(limit, state, slots_from)
      has_moved = true
    end
    if limit.tag ~= SLOTS and #found > 0 then
      part = part + 1
      local in_use = math.min(found[part] or math.max(unpack(found)), limit.burst * MILLION)
      if in_use > 0 then
        algorithm.fill(limit, in_use, math.min(requirement.since, now))
      end
    end
  end
  return has_moved or now < math.max(requirement.since, replaced)
end

-- Whether a state has one part for each limit, written with the numbers of the limit.
local function matches_limits(requirement, state)
  local from = 9
  for _, limit in ipairs(requirement.limits) do
    local tag, size = 0, 0
    if from < #state then
      tag, size = struct.unpack('<BH', state, from)
    end
    if tag ~= limit.tag or not select(2, algorithm_of(tag, true).read(limit, state, from)) then
      return false
    end
    from = from + size
  end
  return from > #state
end

-- Begin without a state although all units are in use since a time, which may be in a moment.
local function use_up(requirement, at)
  requirement.pause = math.max(requirement.pause, at - now)
  for _, limit in ipairs(requirement.limits) do
    if limit.tag ~= SLOTS then
      algorithm_of(limit.tag, true).fill(limit, limit.burst * MILLION, math.min(at, now))
    end
  end
end

-- `old_since` is when (us) the definition before the one in force came into force, `used_up` when its limits were used
-- up. The state is false if there is none.
return function(requirement, state, old_since, used_up)
  if not state then
    return use_up(requirement, used_up)
  end
  local since, has_to_write = struct.unpack('<d', state), true
  requirement.is_converted = true
  if since ~= requirement.since or not matches_limits(requirement, state) then
    has_to_write = carry_over(requirement, state, since, old_since, used_up)
  else
    local from = 9
    for _, limit in ipairs(requirement.limits) do
      algorithm_of(limit.tag, true).move_back(limit, state, from)
      from = from + select(2, struct.unpack('<BH', state, from))
    end
  end
  if has_to_write then
    write_state(requirement)
  end
end
