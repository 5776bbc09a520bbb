-- scan_messages.lua: reads the messages that wait in one queue, some at a time.
-- uses: line_data
-- KEYS  1   the queue's messages
-- ARGV  1   cursor: '0' at first, then the one that the last call replied
-- Reply {cursor of the next call, '0' at the end; {{task id, message}, ...}}

local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 200)
local tasks = {}
for i = 1, #found[2], 2 do
  tasks[#tasks + 1] = { found[2][i], cmsgpack.unpack(found[2][i + 1])[MESSAGE] }
end
return { found[1], tasks }
