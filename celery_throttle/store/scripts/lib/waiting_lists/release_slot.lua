-- release_slot.lua: releases a slot of a concurrency limit.
-- uses: recheck

-- Release a slot if the holder has it; `wake_later` as in `recheck.lua`. Rechecks the waiting lines first: if the
-- script fails in between, a repeated call does both again.
local function release_slot(entries, waits, holder, wake_later)
  if redis.call('ZSCORE', entries, holder) then
    recheck(waits, wake_later)
    redis.call('ZREM', entries, holder)
  end
end
