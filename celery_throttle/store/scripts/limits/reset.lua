-- reset.lua: forgets what was used of a limit and lifts its pause. Slots in use stay in use.
-- uses: recheck_name
-- uses rarely: key_cap
-- KEYS  1   state
--       2   pause of the limit and key
--       3   entries
--       4   key cap
--       5   set: keys `waits` of the limit's name
-- ARGV  1   now (us), or '' for the server's clock
-- Reply the cursor to go on with by `recheck_waiters.lua`; '0' at the end. The first lines that wait are rechecked.

if redis.call('EXISTS', KEYS[3]) == 0 then
  key_cap().forget(KEYS[4], KEYS[3])
end
redis.call('DEL', KEYS[1], KEYS[2])
return recheck_name(KEYS[5], '0')
