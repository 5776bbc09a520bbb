-- list_quarantined.lua: reads through the tasks that were set aside, some at a time.
--
-- KEYS  1   hash: tasks that were set aside
-- ARGV  1   cursor: '0' at first, then what the last call replied
-- Reply {cursor to go on with, '0' at the end; {{task id, label, key `lines` of its queue}, ...}}

local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 100)
local rows = {}
for i = 1, #found[2], 2 do
  local label, _, about = unpack(cmsgpack.unpack(found[2][i + 1]))
  rows[#rows + 1] = { found[2][i], label, about.queue[1] }
end
return { found[1], rows }
