-- line_requirements.lua: the requirements of a line: its limits and keys with the costs of one of its tasks.

-- The requirements of a descriptor, see `requirements.lua`; not loaded yet.
local function requirements_of(descriptor, costs)
  local requirements = {}
  for i, limit_keys in ipairs(descriptor.limits) do
    requirements[i] = { name = limit_keys[NAME], state = limit_keys[STATE], entries = limit_keys[ENTRIES],
                        cost = costs[i] or 0, pause = 0, has_key = limit_keys[NAME] ~= limit_keys[FIELD],
                        limits = false, since = 0, ends = false, weight = 1 }
  end
  return requirements
end

-- The weight of a line: the greatest of its requirements. Nil for 1.
local function weight_of(requirements)
  local weight = 1
  for _, requirement in ipairs(requirements) do
    weight = math.max(weight, requirement.weight)
  end
  return weight > 1 and weight or nil
end

-- Other tasks have other costs. Returns whether there is one for each requirement.
local function set_costs(requirements, costs)
  for i = 1, #requirements do
    local limits, cost = requirements[i].limits, costs[i]
    if type(cost) ~= 'number' then
      return false
    end
    for n = 1, #limits do
      limits[n].cost = cost
    end
  end
  return true
end

-- Load the requirements of a descriptor, and their weights: that of a key comes before that of its name. Returns what
-- `load_limits` returns.
local function load_requirements(definitions, descriptor, requirements)
  local fields, keys = {}, {}
  for i, limit_keys in ipairs(descriptor.limits) do
    local weight = 2 * (#requirements + i)
    fields[2 * i - 1], fields[2 * i] = limit_keys[FIELD], limit_keys[NAME]
    fields[weight - 1], fields[weight] = 'weight ' .. limit_keys[FIELD], 'weight ' .. limit_keys[NAME]
    keys[3 * i - 2], keys[3 * i - 1], keys[3 * i] = limit_keys[STATE], limit_keys[PAUSE], limit_keys[KEY_PAUSE]
  end
  local found = read_many('HMGET', definitions, fields, 1, #fields)
  local undefined = load_limits(requirements, found, 2, read_many('MGET', nil, keys, 1, #keys), 3, keys, 1)
  for i = 1, undefined and 0 or #requirements do
    local weight = 2 * (#requirements + i)
    requirements[i].weight = weight_in_force(found[weight - 1]) or weight_in_force(found[weight]) or 1
  end
  descriptor.weight = not undefined and weight_of(requirements) or nil
  return undefined
end

-- Name the holder of the slots that a task takes, and their first lease (us). Returns the keys entries and waiting-lists
-- of each.
local function name_holder(requirements, descriptor, holder, lease)
  local found = {}
  for i, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits) do
      if limit.tag == SLOTS then
        local limit_keys = descriptor.limits[i]
        limit.holder, limit.lease = holder, lease
        found[#found + 1], found[#found + 2] = limit_keys[ENTRIES], limit_keys[WAITING_LISTS]
      end
    end
  end
  return found
end

-- Take the cost of a task for its start after a wait (us); slots for `holder`, at first for `lease` (us). Returns the
-- marks by which units that no task uses are given back, of a run that settles always, of another if a limit takes more
-- than a second to give the cost again; and the keys entries and waiting-lists of each slot.
local function take_for_run(requirements, descriptor, costs, wait, settles, holder, lease) -- rare
  local slot_keys = name_holder(requirements, descriptor, holder, lease)
  commit(requirements, now + wait)
  local has_marks = settles or is_slow(requirements, LONG)
  return has_marks and take_marks()(requirements, descriptor, costs) or {}, unpack(slot_keys)
end

-- Measure how many more tasks may wait at a requirement. Adds to it
--   waiting    tasks that wait there
--   capacity   {room = tasks that may join, bound = its `max-waiting`, or 0 if the queue of a leaky-queue has less
--              room than that}
local function measure_capacity(requirement, limit_keys)
  requirement.waiting = tonumber(redis.call('GET', limit_keys[BACKLOG]) or 0)
  local capacity = { room = math.huge, bound = requirement.max_waiting or 0 }
  if capacity.bound > 0 then
    capacity.room = capacity.bound - requirement.waiting
  end
  for _, limit in ipairs(requirement.limits) do
    if limit.tag == LEAKY_QUEUE then
      -- Units that have not leaked yet are in the queue, too.
      local own = limit.burst - requirement.waiting - math.ceil(limit.used / limit.p)
      if own < capacity.room then
        capacity.room, capacity.bound = own, 0
      end
    end
  end
  requirement.capacity = capacity
end

-- The index of the first requirement at which no more tasks may wait, or nil.
local function find_full_queue(requirements)
  for i, requirement in ipairs(requirements) do
    if requirement.capacity.room <= 0 then
      return i
    end
  end
end

-- {key cap, entries} of each requirement that has a key cap; nil if none has.
local function key_caps_of(requirements)
  local caps
  for _, requirement in ipairs(requirements) do
    if requirement.key_cap then
      caps = caps or {}
      caps[#caps + 1] = { requirement.key_cap, requirement.entries }
    end
  end
  return caps
end
