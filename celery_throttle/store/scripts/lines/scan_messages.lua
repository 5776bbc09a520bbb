-- scan_messages.lua: reads the messages that wait in one queue, some at a time.
-- uses: unpack_row, scan_hash
-- KEYS  1   the queue's messages
-- ARGV  1   cursor: '0' at first, then the one that the last call replied
-- Reply {cursor of the next call, '0' at the end; {{task id, message}, ...}}

local cursor, found = scan_hash(KEYS[1], ARGV[1], 200)
local tasks = {}
for i = 1, #found, 2 do
  local row = unpack_row(found[i + 1])
  if row then
    tasks[#tasks + 1] = { found[i], row[MESSAGE] }
  end
end
return { cursor, tasks }
