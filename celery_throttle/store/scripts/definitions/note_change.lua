-- note_change.lua: notes in the log of changes what was done to waiting tasks.
-- KEYS  see `definitions.lua`
-- ARGV  2   what was done: 'drain', 'move', 'drop' or 'cancel'
--       3   field of the limit or key, or the fan-out; '' for all
--       4   to how many tasks, and where to, in words
--       5   about: JSON, who did it and why

work_without_memory()
record_change(ARGV[2], ARGV[3], '', ARGV[4], ARGV[5])
