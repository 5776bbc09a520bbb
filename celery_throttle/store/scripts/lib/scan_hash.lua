-- scan_hash.lua: HSCAN for hashes whose values have tasks in them, which may be large.
-- uses: batch_bytes

-- Returns the cursor of the next call, '0' at the end, and {field, value, ...}: of about `count` fields at most.
local function scan_hash(key, cursor, count)
  local found, bytes = {}, 0
  for _ = 1, count do
    local step = redis.call('HSCAN', key, cursor, 'COUNT', 1)
    cursor = step[1]
    for _, text in ipairs(step[2]) do
      found[#found + 1], bytes = text, bytes + #text
    end
    if cursor == '0' or bytes >= BATCH_BYTES then
      break
    end
  end
  return cursor, found
end
