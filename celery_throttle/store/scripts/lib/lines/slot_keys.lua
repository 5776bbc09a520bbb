-- slot_keys.lua: lists the keys entries and waiting-lists of each slot that a task takes.
-- uses: line_data, tags

local function slot_keys_of(requirements, descriptor)
  local found = {}
  for i, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits) do
      if limit.tag == SLOTS then
        local limit_keys = descriptor.limits[i]
        found[#found + 1], found[#found + 2] = limit_keys[ENTRIES], limit_keys[WAITING_LISTS]
      end
    end
  end
  return found
end
