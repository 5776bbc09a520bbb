-- reset.lua: forgets what was used of a limit and lifts its pause. Slots in use stay in use.
-- KEYS  1-4 as for `pause.lua`
--       5   state; the state of shadow limits is beside it, see `shadow.lua`
--       6   entries
--       7   key cap
--       8   set: keys `waiting-lists` of the limit's name
-- ARGV  2-4 as for `resume.lua`
-- Reply the cursor to go on with by `make_due.lua`; '0' at the end. The first lines that wait are rechecked.

redis.call('DEL', KEYS[1], KEYS[2], KEYS[5], KEYS[5] .. '+shadow') -- first, as it needs no memory
if redis.call('EXISTS', KEYS[6]) == 0 then
  key_cap().forget(KEYS[7], KEYS[6])
end
if ARGV[3] ~= '' then
  redis.call('ZREM', KEYS[3], ARGV[3])
end
record_change('reset', ARGV[2], '', '', ARGV[4])
return make_name_due(KEYS[8], '0')
