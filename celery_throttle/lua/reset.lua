-- reset.lua: forget what was used of a limit and lift its pause. Slots in use stay in use.
--
-- KEYS  1   the algorithm's state
--       2   the pause of the limit and key
-- Reply how many of the two there were.

return redis.call('DEL', KEYS[1], KEYS[2])
