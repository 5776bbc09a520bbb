-- list_tasks.lua: lists the tasks of the lines that wait at a limit or key, line by line.
-- KEYS  1   `waiting-lists` of the limit and key
--       2   head of the keys `messages`
--       3   head of the keys `due`
-- ARGV  2   how many tasks to pass over
--       3   how many to list at most; their bytes are bounded, too
-- Reply {tasks that wait there, {task id, waited (us), message, queue, line, position in the line, from 1}, ...}. Tasks of
--       lines are listed in their order.

local skip, most, all, bytes, reply = tonumber(ARGV[2]), tonumber(ARGV[3]), 0, 0, {}
local found = redis.call('HGETALL', KEYS[1])
for i = 1, #found, 2 do
  local queue = string.sub(cmsgpack.unpack(found[i + 1])[1], #KEYS[3] + 1)
  for _, line in ipairs(redis.call('ZRANGE', found[i], 0, -1)) do
    local tasks = redis.call('ZCARD', line)
    local first = math.max(0, skip - all)
    if first < tasks and #reply < most and bytes < BATCH_BYTES then
      local ids = redis.call('ZRANGE', line, first, math.min(tasks, first + most - #reply) - 1)
      for n, id in ipairs(ids) do
        local packed = redis.call('HGET', KEYS[2] .. queue, id)
        local row = packed and unpack_row(packed)
        bytes = bytes + (packed and #packed or 0)
        reply[#reply + 1] = { id, row and wait_of(row) or 0, row and row[MESSAGE] or '', queue, line, first + n }
        if bytes >= BATCH_BYTES then
          break
        end
      end
    end
    all = all + tasks
  end
end
return { all, unpack(reply) }
