-- pause_for_slots.lua: counts the slots in use of a limit and its keys, some keys of the server at a time; pauses the limit
-- meanwhile, so that no others are taken. Before a limit moves to another shard, its slots are released.
-- KEYS  1-3  as for `pause.lua`
--       4    head of the names of entries, with the name of the limit behind it
-- ARGV  2    for how long (us) to pause; 0 for not at all
--       3    about: JSON, who does it and why
--       4    cursor: '0' at first, then the one that the last call replied
-- Reply {cursor of the next call, '0' at the end; how many slots are in use}

local function count_slots(entries)
  local behind = string.sub(entries, #KEYS[4] + 1)
  local is_own = behind == '' or string.sub(behind, 1, 1) == ':' and not string.find(behind, '+', 1, true)
  return is_own and redis.call('ZCOUNT', entries, '(' .. format_integer(now), '+inf') or 0
end

work_without_memory()
if ARGV[2] ~= '0' then
  extend_pause({ KEYS[1], KEYS[2], KEYS[3] }, tonumber(ARGV[2]), ARGV[3])
end
local pattern = string.gsub(KEYS[4], '[%[%]*?\\]', '\\%0') .. '*'
local found, used = redis.call('SCAN', ARGV[4], 'MATCH', pattern, 'COUNT', 1000), 0
for _, entries in ipairs(found[2]) do
  used = used + count_slots(entries)
end
return { found[1], used }
