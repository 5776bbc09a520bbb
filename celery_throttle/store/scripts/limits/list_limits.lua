-- list_limits.lua: lists the fields of all definitions of limits, some at a time.
-- uses: clock
-- KEYS  1   hash: definitions of limits
-- ARGV  1   now (us), or '' for the server's clock
--       2   cursor: '0' at first, then the one that the last call replied
-- Reply {now (us), cursor of the next call, '0' at the end; {field, ...}}

local found = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 500)
local fields = {}
for i = 1, #found[2], 2 do
  fields[#fields + 1] = found[2][i]
end
return { format_integer(now), found[1], fields }
