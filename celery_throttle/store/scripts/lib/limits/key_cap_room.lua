-- key_cap_room.lua: finds the requirement whose key has to wait longest for room in its key cap. Returns its index,
-- and how long (us) it waits: -1 if there can never be room. 0 and 0 if there is room for all.
-- uses rarely: key_cap

local function find_full_key_cap(requirements)
  for i = 1, #requirements do
    if requirements[i].key_cap then
      return key_cap().find_full(requirements)
    end
  end
  return 0, 0
end
