-- release_slots.lua: releases the slots of a claim.
-- uses: release_slot, line_data

-- The holder of the slots of a task: a worker, and its token for the claim or for the task at its gate.
local function holder_of(worker, token)
  return worker .. ' ' .. token
end

local function release_slots(descriptor, worker, token, wake_later)
  for _, limit_keys in ipairs(descriptor.limits) do
    release_slot(limit_keys[ENTRIES], limit_keys[WAITING_LISTS], holder_of(worker, token), wake_later)
  end
end
