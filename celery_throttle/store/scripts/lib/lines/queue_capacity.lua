-- queue_capacity.lua: whether one more task may wait at some limits, and the key caps that count its line.
-- uses: line_data, definition

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
