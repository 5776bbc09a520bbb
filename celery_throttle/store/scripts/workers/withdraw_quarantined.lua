-- withdraw_quarantined.lua: claims tasks of one queue out of quarantine, some at a time.
-- KEYS  1   zset: workers -> end of their lease (us)
--       2   hash: claims of the caller, see `line_data.lua`
--       3   hash: tasks in quarantine, see `quarantine.lua`
--       4   the queue's lines
-- ARGV  2   the caller, which has a lease like a worker
--       3   lease (us)
--       4   the token of the first task claimed; the following ones count up
--       5   cursor: '0' at first, then the one that the last call replied
--       6   name of the limit that they need, or '' for any
--       7   field of one key of the limit, or '' for all its keys
-- Reply {cursor of the next call, '0' at the end; how many were found; {token, message, task id}, ...}; the message is
-- empty if the task cannot be read

local workers, claims, quarantine, caller = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local token, taken = tonumber(ARGV[4]), {}
work_without_memory()
follow_clock(workers)
-- With a lease the claims are requeued, whatever becomes of the caller.
write_lease(workers, caller, now + tonumber(ARGV[3]))
local cursor, found = scan_hash(quarantine, ARGV[5], 100)
for i = 1, #found, 2 do
  local id = found[i]
  local line, descriptor, _, score, packed = unpack_claim(found[i + 1])
  if line and descriptor.queue[LINES] == KEYS[4] and needs_limit(descriptor, ARGV[6], ARGV[7]) then
    redis.call('HSET', claims, token, cmsgpack.pack({ line, descriptor, id, score, packed }))
    redis.call('HDEL', quarantine, id)
    local row = unpack_row(packed)
    taken[#taken + 1], token = { token, row and row[MESSAGE] or '', id }, token + 1
  end
end
end_lease(workers, caller, claims)
return { cursor, #taken, unpack(taken) }
