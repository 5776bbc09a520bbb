-- line_removal.lua: removes waiting tasks from anywhere in their lines.
-- uses: remove_tasks, descriptor, fair_queue, unpack_row

-- Returns the line of a task of a queue, the index of the limit at which it waits, its descriptor, and the packed row
-- of the task and the row itself; nil if the task does not wait, or its row cannot be read.
local function find_task(queue, id)
  local packed = redis.call('HGET', queue[MESSAGES], id)
  local row = packed and unpack_row(packed)
  local line = row and row[LINE]
  local found = line and redis.call('ZSCORE', line, id) and redis.call('HGET', queue[LINES], line)
  if found then
    local limit_index, descriptor = unpack_descriptor(found)
    return line, limit_index, descriptor, packed, row
  end
end

-- Remove tasks for good, and update the waiting list of their line.
local function remove_from_line(line, descriptor, limit_index, ids)
  local limit_keys, queue = descriptor.limits[limit_index], descriptor.queue
  remove_tasks(line, descriptor, limit_index, ids)
  if redis.call('EXISTS', line) == 0 then
    redis.call('ZREM', limit_keys[WAITING], line)
    drop_empty_list(limit_keys, queue)
  else
    update_rank(limit_keys[WAITING], line, descriptor)
  end
  bring_forward(limit_keys, queue, 0)
end
