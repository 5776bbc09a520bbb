-- lines.lua: tasks join and leave lines. Each change of a line also keeps right its waiting list, the backlog of the limit
-- where it waits, its key caps, and its fan-out.

-- Count a line that begins (1) or ends (-1) in its key caps: while a line holds tasks, its keys are in use.
local function count_in_key_caps(descriptor, change)
  for _, key in ipairs(descriptor.key_caps or {}) do
    key_cap().count_line(key[1], key[2], change)
  end
end

-- Forget a line that has no tasks any more.
local function end_line(line, descriptor) -- rare
  local queue = descriptor.queue
  redis.call('HDEL', queue[LINES], line)
  count_in_key_caps(descriptor, -1)
  if descriptor.temporary and redis.call('EXISTS', queue[LINES]) == 0 then
    redis.call('ZREM', descriptor.temporary, queue[LINES])
  end
end

-- Let a line wait at one of its limits, whose waiting list is due after a wait (us).
local function attach_line(line, descriptor, limit_index, wait) -- rare
  local limit_keys, queue = descriptor.limits[limit_index], descriptor.queue
  local waiting = limit_keys[WAITING]
  redis.call('HSET', queue[LINES], line, pack_descriptor(limit_index, descriptor))
  change_backlog(limit_keys, redis.call('ZCARD', line))
  enter_list(waiting, line, descriptor)
  if redis.call('ZCARD', waiting) == 1 then
    redis.call('ZADD', queue[DUE], due_time(wait), waiting)
    -- If the list was registered, the server has lost its other lines. If it alone is due and there are other lines,
    -- the server has lost what else was due.
    local is_new = register_list(limit_keys, queue)
    if not is_new then
      redis.call('DEL', waiting)
    end
    if not is_new or redis.call('ZCARD', queue[DUE]) == 1 and redis.call('HLEN', queue[LINES]) > 1 then
      repair()(queue)
    end
  elseif redis.call('ZRANK', waiting, line) == 0 then
    bring_forward(limit_keys, queue, wait)
  end
end

-- A line that has an entry in its queue has a new first task, which its limit has room for after a wait (us).
local function serve_new_first(line, descriptor, limit_keys, is_alone, wait) -- rare
  local queue = descriptor.queue
  if is_alone then
    -- The line was registered but empty: the server has lost its tasks.
    repair()(queue, line)
  end
  update_rank(limit_keys[WAITING], line, descriptor)
  bring_forward(limit_keys, queue, wait)
end

-- A task has joined a line that has no entry in its queue; see `join_line`.
local function begin_line(line, descriptor, is_alone, wait, bottleneck) -- rare
  local queue = descriptor.queue
  if not descriptor.limits[0] then
    if is_alone then
      count_in_key_caps(descriptor, 1)
    else
      -- The server has lost the descriptor, so the line may be in any of the waiting lists.
      for _, limit_keys in ipairs(descriptor.limits) do
        redis.call('ZREM', limit_keys[WAITING], line)
        drop_empty_list(limit_keys, queue)
      end
    end
    attach_line(line, descriptor, math.max(1, bottleneck), wait)
  elseif is_alone then
    -- A task comes back that is surplus, or whose descriptor was lost.
    local waiting = descriptor.limits[0][WAITING]
    enter_list(waiting, line, descriptor)
    redis.call('ZADD', queue[DUE], now, waiting)
    if descriptor.limits[1] then
      redis.call('HSET', queue[LINES], line, pack_descriptor(0, descriptor))
    end
  else
    update_rank(descriptor.limits[0][WAITING], line, descriptor)
  end
end

-- Add a task with its packed row to a line. If the line is not known yet, it waits at the limit `bottleneck` (0 for
-- any), which has room for it after a wait (us). `is_behind`: whether it is known that others come before it. Returns the
-- index of the limit at which the line waits.
local function join_line(line, descriptor, id, score, row, wait, bottleneck, is_behind)
  local queue, known = descriptor.queue, redis.call('HGET', descriptor.queue[LINES], line)
  if descriptor.temporary then
    redis.call('ZADD', descriptor.temporary, now, queue[LINES])
  end
  redis.call('ZADD', line, score, id)
  local is_first = not is_behind and redis.call('ZRANK', line, id) == 0
  local is_alone = is_first and redis.call('ZCARD', line) == 1
  local limit_index = known and string.byte(known, 1) or math.max(1, bottleneck)
  if known then
    local limit_keys = descriptor.limits[limit_index] or select(2, unpack_descriptor(known)).limits[limit_index]
    change_backlog(limit_keys, 1)
    if is_first then
      serve_new_first(line, descriptor, limit_keys, is_alone, wait)
    end
  else
    begin_line(line, descriptor, is_alone, wait, bottleneck)
  end
  redis.call('HSET', queue[MESSAGES], id, row)
  if descriptor.fan_out then
    change_fan_out_waiting(descriptor.fan_out, 1)
  end
  return limit_index
end

-- Add tasks behind the first of their line, which is known: `members` are scores and ids, `rows` ids and packed rows.
local function join_behind(line, descriptor, members, rows) -- rare
  local queue, tasks = descriptor.queue, #rows / 2
  call_with('ZADD', line, members)
  local found = redis.call('HGET', queue[LINES], line)
  if found then
    local limit_index, stored = unpack_descriptor(found)
    change_backlog(stored.limits[limit_index], tasks)
  end
  call_with('HSET', queue[MESSAGES], rows)
  if descriptor.fan_out then
    change_fan_out_waiting(descriptor.fan_out, tasks)
  end
end

-- Add the first task of a line, and wake a worker that would otherwise poll too late for it. Returns what `join_line`
-- returns.
local function join_and_wake(line, descriptor, id, score, row, wait, bottleneck)
  local earliest = redis.call('ZRANGE', descriptor.queue[DUE], 0, 0, 'WITHSCORES')[2]
  local limit_index = join_line(line, descriptor, id, score, row, wait, bottleneck)
  if not earliest or now + wait < tonumber(earliest) then
    wake(descriptor.queue[POLLS], now + wait)
  end
  return limit_index
end

-- Let a task of a line end as revoked: write it to the surplus line of that line. The caller removes it from its own
-- line. Returns false if its row cannot be read.
local function add_surplus(descriptor, id, score, packed) -- rare
  local queue, row = descriptor.queue, unpack_row(packed)
  if not row then
    return false
  end
  local surplus, waiting = unpack(descriptor.surplus)
  row[LINE], row[KEY_CAPS], row[SETTLES], row[SURPLUS] = surplus, false, false, true
  -- In this order, so that a claim clears away what a script that fails here leaves.
  redis.call('ZADD', queue[DUE], 'NX', now, waiting)
  redis.call('ZADD', waiting, 'NX', 0, surplus)
  local limits = { [0] = { [WAITING] = waiting }, unpack(descriptor.limits) }
  redis.call('HSET', queue[LINES], surplus, pack_descriptor(0, { queue = queue, limits = limits }))
  redis.call('ZADD', surplus, score, id)
  update_rank(waiting, surplus, descriptor)
  redis.call('HSET', queue[MESSAGES], id, cmsgpack.pack(row))
  increase_totals(descriptor, 'replaced', 1)
  return true
end

-- Let all tasks of a line but one end as revoked, which waits for room at its limit (us). Returns how many.
local function end_others(line, descriptor, id, wait) -- rare
  local queue, ended = descriptor.queue, {}
  local entries = redis.call('ZRANGE', line, 0, -1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    local packed = entries[i] ~= id and redis.call('HGET', queue[MESSAGES], entries[i])
    if packed and add_surplus(descriptor, entries[i], entries[i + 1], packed) then
      ended[#ended + 1] = entries[i]
    end
  end
  call_with('ZREM', line, ended)
  local found = ended[1] and redis.call('HGET', queue[LINES], line)
  if found then
    local limit_index, stored = unpack_descriptor(found)
    local limit_keys = stored.limits[limit_index]
    change_backlog(limit_keys, -#ended)
    update_rank(limit_keys[WAITING], line, stored)
    bring_forward(limit_keys, queue, wait)
  end
  return #ended
end

-- Return a task that a worker had to its position in its line, unless it waits again already. A task of a cancelled
-- fan-out ends as revoked; so does a task of a line in which only one may wait, if another one does.
local function rejoin_line(line, descriptor, id, score, row)
  local fan_out, queue = descriptor.fan_out, descriptor.queue
  if redis.call('HEXISTS', queue[MESSAGES], id) == 1 then
    return
  end
  if fan_out and redis.call('HEXISTS', fan_out, 'cancelled') == 1 then
    record_fan_out_outcome(fan_out, id, 'revoked')
    change_fan_out_waiting(fan_out, 0)
    return
  end
  if descriptor.surplus and redis.call('EXISTS', line) == 1 and add_surplus(descriptor, id, score, row) then
    increase_totals(descriptor, 'requeued', 1)
    return
  end
  join_line(line, descriptor, id, tonumber(score), row, 0, 1)
  increase_totals(descriptor, 'requeued', 1)
  wake(queue[POLLS], now)
end

-- Remove tasks from their line; `has_others` is whether the line keeps any, nil if the caller does not know. A line
-- without tasks ends, but stays in its waiting list: the caller removes it there, or updates its rank if it has tasks.
local function remove_tasks(line, descriptor, limit_index, ids, has_others)
  local queue = descriptor.queue
  call_with('HDEL', queue[MESSAGES], ids)
  call_with('ZREM', line, ids)
  change_backlog(descriptor.limits[limit_index], -#ids)
  if descriptor.fan_out then
    change_fan_out_waiting(descriptor.fan_out, -#ids)
  end
  if has_others == nil then
    has_others = redis.call('EXISTS', line) == 1
  end
  if not has_others then
    end_line(line, descriptor)
  end
end

-- Returns the line of a task of a queue, the index of the limit at which it waits, its descriptor, and the packed row
-- of the task and the row itself; nil if the task does not wait, or its row cannot be read.
local function find_task(queue, id)
  local packed = redis.call('HGET', queue[MESSAGES], id)
  local row = packed and unpack_row(packed)
  local line = row and row[LINE]
  local found = line and redis.call('ZSCORE', line, id) and redis.call('HGET', queue[LINES], line)
  local limit_index, descriptor = unpack_descriptor(found or '')
  if descriptor then
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
