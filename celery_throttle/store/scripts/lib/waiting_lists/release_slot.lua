-- release_slot.lua: releases a slot if the holder has it; `wake_later` as in `recheck.lua`. It is released last: if
-- the script fails before that, a repeated call rechecks the waiting lines, too.
-- uses: recheck

local function release_slot(entries, waits, holder, wake_later)
  if redis.call('ZSCORE', entries, holder) then
    recheck(waits, wake_later)
    redis.call('ZREM', entries, holder)
  end
end
