-- list_lines.lua: lists the lines of one queue that need a limit, some at a time.
-- uses: descriptor, line_needs, scan_hash
-- KEYS  1   the queue's lines
-- ARGV  1   cursor: '0' at first, then the one that the last call replied
--       2   name of the limit, or '' for all lines
--       3   field of one key of the limit, or '' for all its keys
-- Reply {cursor of the next call, '0' at the end; line, number of its tasks, ...}

local cursor, found = scan_hash(KEYS[1], ARGV[1], 100)
local reply = { cursor }
for i = 1, #found, 2 do
  local _, descriptor = unpack_descriptor(found[i + 1])
  if needs_limit(descriptor, ARGV[2], ARGV[3]) then
    reply[#reply + 1], reply[#reply + 2] = found[i], redis.call('ZCARD', found[i])
  end
end
return reply
