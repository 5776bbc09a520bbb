-- resume.lua: lifts the pause of a limit, or of one key of it, and nothing else. Makes the lines due that
-- wait: workers would not look at them by themselves behind a pause without end.
-- KEYS  1-4 as for `pause.lua`
--       5   set: keys `waiting-lists` of the limit's name; for one key its `waiting-lists`
-- ARGV  2   field of the limit and key
--       3   the key; '' for the limit itself
--       4   about: JSON, who does it and why
-- Reply {1 if it was paused, else 0; the cursor to go on with by `make_due.lua`, '0' at the end}

local ends, cursor, key = tonumber(redis.call('GET', KEYS[1]) or 0), '0', ARGV[3]
local rest = math.max(0, math.floor(ends) - now)
-- First, since a server that is out of memory runs a script whose first write frees memory: the tasks behind this
-- pause may be what fills it. If the script fails after this, call it again.
redis.call('DEL', KEYS[1], KEYS[2])
if key ~= '' then
  redis.call('ZREM', KEYS[3], key)
  make_due(KEYS[5])
else
  cursor = make_name_due(KEYS[5], '0')
end
if rest > 0 then
  record_change('resume', ARGV[2], format_integer(rest), '', ARGV[4])
end
return { rest > 0 and 1 or 0, cursor }
