-- recheck_waiters.lua: a limit has changed, so tasks that wait at it are looked at again now.
-- uses: recheck
--
-- KEYS  1   set: keys `waits` of the limit's name
-- ARGV  1   now (us), or '' for the server's clock
--       2   cursor: '0' at first, then what the last call replied
-- Reply the cursor to go on with; '0' at the end. Called in steps so that no call blocks the server.

return look_again_from(KEYS[1], ARGV[2], clock(ARGV[1]))
