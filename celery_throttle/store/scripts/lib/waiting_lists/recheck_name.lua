-- recheck_name.lua: lets workers recheck the lines that wait at a limit, over all its keys.
-- uses: recheck

-- Recheck some of them; `waited` is the set of the keys `waits` of the limit's name. Returns the cursor of the next
-- step; '0' at the end.
local function recheck_name(waited, cursor)
  local found = redis.call('SSCAN', waited, cursor, 'COUNT', 500)
  for _, waits in ipairs(found[2]) do
    recheck(waits)
  end
  return found[1]
end
