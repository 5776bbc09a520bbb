-- forget_damaged.lua: removes tasks from quarantine of which only the id can be read.
-- KEYS  1   hash: tasks in quarantine, see `quarantine.lua`
-- ARGV  1   task ids

work_without_memory()
for _, id in ipairs(ARGV) do
  local packed = redis.call('HGET', KEYS[1], id)
  if packed and not unpack_claim(packed) then
    redis.call('HDEL', KEYS[1], id)
  end
end
