-- scan_messages.lua: reads through the messages that wait in one queue, some at a time.
--
-- KEYS  1   the queue's messages
-- ARGV  1   cursor: '0' at first, then what the last call replied
-- Reply {cursor to go on with, '0' at the end; {{task id, message}, ...}}

local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 200)
local rows = {}
for i = 1, #found[2], 2 do
  rows[#rows + 1] = { found[2][i], cmsgpack.unpack(found[2][i + 1])[5] }
end
return { found[1], rows }
