-- release.lua: releases slots.
-- uses: release_slot
-- KEYS  per slot: entries, waiting-lists
-- ARGV  1   now (us), or '' for the server's clock
--       2   the holder of the slots

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('ZREM', KEYS[1], '')
for key = 1, #KEYS, 2 do
  release_slot(KEYS[key], KEYS[key + 1], ARGV[2])
end
