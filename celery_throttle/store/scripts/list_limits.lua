-- list_limits.lua: reads through the names of all limits that are defined, some at a time.
-- uses: clock
--
-- KEYS  1   hash: definitions of limits
-- ARGV  1   now (us), or '' for the server's clock
--       2   cursor: '0' at first, then what the last call replied
-- Reply {now (us), cursor to go on with, '0' at the end; {field, ...}}

local found = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 500)
local fields = {}
for i = 1, #found[2], 2 do
  fields[#fields + 1] = found[2][i]
end
return { whole(clock(ARGV[1])), found[1], fields }
