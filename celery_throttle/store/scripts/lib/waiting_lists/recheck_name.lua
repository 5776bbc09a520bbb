-- recheck_name.lua: rechecks the lines that wait at a limit, some of its keys at a time. `index` is the set of the
-- keys `waiting-lists` of its name. Returns the cursor of the next step; '0' at the end.
-- uses: recheck

local function recheck_name(index, cursor)
  local found = redis.call('SSCAN', index, cursor, 'COUNT', 500)
  for _, lists in ipairs(found[2]) do
    recheck(lists)
  end
  return found[1]
end
