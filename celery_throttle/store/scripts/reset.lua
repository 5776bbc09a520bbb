-- reset.lua: forget what was used of a limit and lift its pause. Slots in use stay in use.
-- uses: recheck
--
-- KEYS  1   the algorithm's state
--       2   the pause of the limit and key
--       3   entries
--       4   crowd
--       5   set: keys `waits` of the limit's name
-- ARGV  1   now (us), or '' for the server's clock
-- Reply the cursor to go on with by `recheck_waiters.lua`; '0' at the end. The first of what waits is looked at again.

if redis.call('EXISTS', KEYS[3]) == 0 then
  key_cap().forget(KEYS[4], KEYS[3])
end
redis.call('DEL', KEYS[1], KEYS[2])
return look_again_from(KEYS[5], '0', clock(ARGV[1]))
