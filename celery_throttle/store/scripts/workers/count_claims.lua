-- count_claims.lua: counts the claims of one worker whose tasks need a limit, some at a time.
-- uses: line_needs, scan_hash
-- KEYS  1   hash: claims of the worker, see `line_data.lua`
-- ARGV  1   cursor: '0' at first, then the one that the last call replied
--       2   name of the limit, or '' for any
--       3   field of one key of the limit, or '' for all its keys
-- Reply {cursor of the next call, '0' at the end; how many}

local cursor, found = scan_hash(KEYS[1], ARGV[1], 100)
local count = 0
for i = 2, #found, 2 do
  local descriptor = cmsgpack.unpack(found[i])[2]
  if needs_limit(descriptor, ARGV[2], ARGV[3]) then
    count = count + 1
  end
end
return { cursor, count }
