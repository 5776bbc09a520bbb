-- enlist_check.lua: whether a task of a fan-out may join its line.
-- uses: key_cap_room, queue_capacity, line_data, tags, arithmetic

-- Why a task must not join its line, as the end of a reply of `enlist.lua`; nil if it may. At most `max_waiting`
-- tasks of the fan-out may wait, 0 for any number.
local function refusal_of(line, costs, waiting, max_waiting)
  if max_waiting > 0 and waiting >= max_waiting or find_full_queue(line.requirements) then
    return { 'hold' }
  end
  local full_cap, cap_wait = 0, 0
  if not line.is_known then
    full_cap, cap_wait = find_full_key_cap(line.requirements)
  end
  if full_cap > 0 then
    return { 'crowded', cap_wait, full_cap, line.requirements[full_cap].max_keys }
  end
  for i, requirement in ipairs(line.requirements) do
    for _, limit in ipairs(requirement.limits) do
      if costs[i] > limit.burst * MILLION and limit.tag ~= SLOTS then
        return { 'never', i, limit.burst }
      end
    end
  end
end

-- Whether a task waits in its line already: an earlier call failed before it could record that. Nil if the same id
-- waits in another line.
local function is_in_line(line, id)
  local row = redis.call('HGET', line.descriptor.queue[MESSAGES], id)
  if row then
    return cmsgpack.unpack(row)[LINE] == line.name or nil
  end
  return false
end
