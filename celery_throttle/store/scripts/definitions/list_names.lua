-- list_names.lua: lists the names of all limits that are defined, some at a time.
-- KEYS  1   set: names of limits
-- ARGV  2   cursor: '0' at first, then the one that the last call replied
-- Reply {now (us), cursor of the next call, '0' at the end; {name, ...}}

local found = redis.call('SSCAN', KEYS[1], ARGV[2], 'COUNT', 500)
return { format_integer(now), found[1], found[2] }
