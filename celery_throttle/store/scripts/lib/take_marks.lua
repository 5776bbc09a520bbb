-- take_marks.lua: what identifies takes for `settlement.lua`, after `charge` or `commit`. For each requirement a list:
-- since when (us) its definition is in force, how many limits it has, and two numbers for each limit. Before these, with
-- a descriptor (see `line_data.lua`): the field, and the cost that was taken. Then requirements without limits, as that
-- of a fan-out, are left out.
return function(requirements, descriptor, costs)
  local found = {}
  for i, requirement in ipairs(requirements) do
    if requirement.limits[1] or not descriptor then
      local own = descriptor and { descriptor.limits[i][FIELD], costs[i] } or {}
      own[#own + 1], own[#own + 2] = requirement.since, #requirement.limits
      for _, limit in ipairs(requirement.limits) do
        own[#own + 1], own[#own + 2] = algorithm_of(limit.tag, true).mark(limit)
      end
      found[#found + 1] = own
    end
  end
  return found
end
