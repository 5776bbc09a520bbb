-- withdraw.lua: claims revoked tasks, without quota, so that the calling worker can announce them as revoked.
-- KEYS  1   zset: workers -> end of their lease (us)
--       2   hash: claims of this worker, see `line_data.lua`
--       then per queue: lines, messages, due, polls
--       last: head of the totals, see `counters.lua`
-- ARGV  2   the worker
--       3   lease (us)
--       4   the token of the first task claimed; the following ones count up
--       then task ids
-- Reply {{token, 0, 0, waited (us), message, task id}, ...} for the tasks that wait in these queues, whose bytes are
-- bounded: the caller repeats the call until it replies none

work_without_memory()
local token, taken, bytes = tonumber(ARGV[4]), {}, 0
for key = 3, #KEYS - 1, 4 do
  local queue = { unpack(KEYS, key, key + 3) }
  for i = 5, #ARGV do
    if bytes >= BATCH_BYTES then
      break
    end
    local id = ARGV[i]
    local line, limit_index, descriptor, packed, row = find_task(queue, id)
    if line then
      bytes = bytes + #packed
      if #taken == 0 then
        -- With a lease the claims are requeued, whatever becomes of the worker.
        follow_clock(KEYS[1])
        write_lease(KEYS[1], ARGV[2], now + tonumber(ARGV[3]))
      end
      local claim_head = pack_claim_head(line, cmsgpack.pack(descriptor))
      redis.call('HSET', KEYS[2], token, claim_head .. cmsgpack.pack(id, row[SCORE], packed))
      remove_from_line(line, descriptor, limit_index, { id })
      increase_totals(descriptor, 'revoked', 1)
      taken[#taken + 1] = { token, 0, 0, wait_of(row), row[MESSAGE], id }
      token = token + 1
    end
  end
end
return taken
