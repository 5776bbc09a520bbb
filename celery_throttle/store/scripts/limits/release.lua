-- release.lua: releases slots.
-- KEYS  per slot: entries, waiting-lists
-- ARGV  2   the holder of the slots

work_without_memory()
for key = 1, #KEYS, 2 do
  release_slot(KEYS[key], KEYS[key + 1], ARGV[2])
end
