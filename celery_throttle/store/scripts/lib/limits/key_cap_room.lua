-- key_cap_room.lua: whether the key caps of requirements have room for their keys.
-- uses rarely: key_cap

-- The index of the requirement whose key has to wait longest for room, and how long (us); -1 if there can never be
-- room. 0 and 0 if there is room for all.
local function find_full_key_cap(requirements)
  for i = 1, #requirements do
    if requirements[i].key_cap then
      return key_cap().find_full(requirements)
    end
  end
  return 0, 0
end
