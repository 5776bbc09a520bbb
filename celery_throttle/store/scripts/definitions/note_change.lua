-- note_change.lua: notes in the log of changes what was done to waiting tasks.
-- uses: changes
-- KEYS  1-4 see `change_definition.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   what was done: 'drain', 'move', 'drop' or 'cancel'
--       3   field of the limit or key, or the fan-out; '' for all
--       4   to how many tasks, and where to, in words
--       5   about: JSON, who did it and why

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('PEXPIRE', KEYS[4], CHANGES_KEPT_MS)
record_change(ARGV[2], ARGV[3], '', ARGV[4], ARGV[5])
