-- list_quarantined.lua: lists the tasks in quarantine, some at a time.
-- uses: line_data, scan_hash
-- KEYS  1   hash: tasks in quarantine, see `quarantine.lua`
-- ARGV  1   cursor: '0' at first, then the one that the last call replied
-- Reply {cursor of the next call, '0' at the end; {{task id, label, key `lines` of its queue}, ...}}

local cursor, found = scan_hash(KEYS[1], ARGV[1], 100)
local tasks = {}
for i = 1, #found, 2 do
  local label, _, descriptor = unpack(cmsgpack.unpack(found[i + 1]))
  tasks[#tasks + 1] = { found[i], label, descriptor.queue[LINES] }
end
return { cursor, tasks }
