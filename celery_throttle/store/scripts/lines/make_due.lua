-- make_due.lua: a limit has changed, so workers look now at the lines that wait at it.
-- KEYS  1   set: keys `waiting-lists` of the limit's name
-- ARGV  2   cursor: '0' at first, then the reply of the last call
-- Reply the cursor of the next call; '0' at the end. Runs in steps, so that no call blocks the server.

work_without_memory()
return make_name_due(KEYS[1], ARGV[2])
