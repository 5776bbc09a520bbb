-- batch_size.lua: how many tasks of a line a claim may take together.
-- uses: claim_call, fair_service, tags, arithmetic

-- At most as many tasks as the line has dispatches before the next line, and one if a limit has slots or a log: what
-- these leave for the next task is known only when they are written. Also returns whether slots are taken.
local function max_batch_size(requirements, descriptor, score, rival)
  local most, has_slots = rival and dispatches_before(descriptor, score, rival) or call.wanted, false
  for _, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits or {}) do
      if limit.tag == SLOTS and #call.taken >= call.free_processes then
        return 0
      elseif limit.tag == SLOTS or limit.tag == SLIDING_LOG then
        most, has_slots = 1, has_slots or limit.tag == SLOTS
      end
    end
  end
  return math.min(most, call.wanted - #call.taken), has_slots
end

-- The ids of the first tasks of a line, given its first entries. With a rival only those of the rank that is served.
local function first_ids(entries, most, score, rival)
  local ids, rank = {}, rank_of(score)
  for i = 1, math.min(#entries, 2 * most), 2 do
    if rival and i > 1 and rank_of(entries[i + 1]) ~= rank then
      break
    end
    ids[#ids + 1] = entries[i]
  end
  return ids
end

-- Whether a limit takes longer to make up for the cost of a task than a start may be booked ahead. Such units are
-- taken for free processes only, since they are lost if the task returns to its line.
local function is_expensive(requirements)
  for _, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits) do
      if limit.tag ~= SLOTS and limit.cost / MILLION * limit.p > call.free_horizon * limit.q then
        return true
      end
    end
  end
  return false
end
