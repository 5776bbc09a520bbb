-- reset.lua: forget what was used of a limit and lift its pause. Slots in use stay in use.
-- uses: clock, exact
-- uses rarely: crowd
--
-- KEYS  1   the algorithm's state
--       2   the pause of the limit and key
--       3   entries
--       4   crowd
-- Reply how many of the two there were.

if redis.call('EXISTS', KEYS[3]) == 0 then
  crowd().forget(KEYS[4], KEYS[3])
end
return redis.call('DEL', KEYS[1], KEYS[2])
