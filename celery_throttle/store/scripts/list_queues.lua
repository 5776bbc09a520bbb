-- list_queues.lua: in which queues tasks wait at a limit. Reads through its keys, some at a time.
--
-- KEYS  1   set: keys `waits` of the limit's name
-- ARGV  1   cursor: '0' at first, then what the last call replied
-- Reply {cursor to go on with, '0' at the end; {key `due` of a queue, ...}}

local found = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', 500)
local queues, seen = {}, {}
for _, waits in ipairs(found[2]) do
  for _, names in ipairs(redis.call('HVALS', waits)) do
    local due = cmsgpack.unpack(names)[1]
    if not seen[due] then
      seen[due], queues[#queues + 1] = true, due
    end
  end
end
return { found[1], queues }
