-- recheck.lua: lets what waits at a limit be looked at again.
-- uses: lines
--
-- Library.

-- The first, or the next, of the lists that wait at a limit, over all its keys: `waited` is the set of keys
-- `waits` of its name. Returns the cursor to go on with; '0' at the end.
local function look_again_from(waited, cursor, now)
  local found = redis.call('SSCAN', waited, cursor, 'COUNT', 500)
  for _, waits in ipairs(found[2]) do
    look_again(waits, now)
  end
  return found[1]
end
