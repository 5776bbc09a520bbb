-- recheck_name.lua: rechecks the lines that wait at a limit, some of its keys at a time. `waited` is the set of the
-- keys `waits` of its name. Returns the cursor of the next step; '0' at the end.
-- uses: recheck

local function recheck_name(waited, cursor)
  local found = redis.call('SSCAN', waited, cursor, 'COUNT', 500)
  for _, waits in ipairs(found[2]) do
    recheck(waits)
  end
  return found[1]
end
