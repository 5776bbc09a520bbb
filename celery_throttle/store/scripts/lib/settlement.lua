-- settlement.lua: corrects what was taken to its actual cost, and gives back what no task used.

-- Units that no task has used are given back if a limit takes longer (us) than this to give the cost again. Others are
-- lost, since the limit gives as many again about as soon.
local LONG = 1000000

-- Whether a limit takes longer than a time (us) to give the cost again.
local function is_slow(requirements, time)
  for _, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits) do
      if limit.tag ~= SLOTS and time * MILLION * limit.q < limit.cost * limit.p then
        return true
      end
    end
  end
end

-- Settle a take of a requirement's cost, by its marks (see `take_marks.lua`), to its actual cost (millionths). If the
-- definition has changed since, nothing is refunded, and a debt counts as taken now. `lists` is the key `waiting-lists`
-- of the limit, whose lines may have room now; for `wake_later` see `make_due`. The lines come first: if the script fails
-- between the two, they are looked at in vain, and not too late.
local function settle_take(requirement, marks, actual, lists, wake_later) -- rare
  local cost, limits, has_changed = requirement.cost, requirement.limits, false
  local is_same = tonumber(marks[1]) == requirement.since and tonumber(marks[2]) == #limits
  if actual == cost or actual < cost and not is_same then
    return
  end
  for n, limit in ipairs(limits) do
    local mark, more = 0, 0
    if is_same then
      mark, more = tonumber(marks[2 * n + 1]), tonumber(marks[2 * n + 2])
    end
    has_changed = algorithm_of(limit.tag, true).settle(limit, mark, more, cost, actual) or has_changed
  end
  if has_changed then
    make_due(lists, wake_later)
    write_state(requirement)
    increase_total(requirement.name, actual > cost and 'granted' or 'refunded', math.abs(actual - cost))
  end
end

-- Give back the units of a claim whose task was certainly not started, by the descriptor of its line, its packed row and
-- the marks of the claim. Call this after the claim was removed: a script that fails in the middle is called again, and
-- must not give them back twice. Nothing is given back if a limit is not defined any more.
local function refund_claim(definitions, descriptor, packed_row, marks, wake_later) -- rare
  local requirements = requirements_of(descriptor, unpack_row(packed_row)[COSTS])
  if not load_requirements(definitions, descriptor, requirements) then
    for i, requirement in ipairs(requirements) do
      settle_take(requirement, marks[i], 0, descriptor.limits[i][WAITING_LISTS], wake_later)
    end
  end
end
