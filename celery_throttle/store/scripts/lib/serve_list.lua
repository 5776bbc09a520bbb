-- serve_list.lua: takes tasks from a waiting list that is due, with their units, for `claim.lua`. Its lines are served in
-- the order of `waiting_lists.lua`. A line that is served is a table:
--   name, queue, waiting   the line, the keys of its queue, and the waiting list
--   score, rival           its score in the list, and the score of the line after it; see `next_line`
--   limit_index, descriptor, packed    see `line_data.lua`; the index is 0 of a surplus line, and if the server has lost
--                          the descriptor, or it cannot be read
--   requirements, undefined    see `load_requirements`
--   slot_keys              of the slots that each task takes, nil if it takes none
--   entries                ids and scores of its first tasks
--   is_opaque              whether only the written state tells what its limits leave for the next task

-- The next line of a waiting list, its score, and the score of the line after it. The last is nil if there is no
-- other line, and the line's own score if it is not known.
local function next_line(waiting)
  local lowest = redis.call('ZRANGE', waiting, 0, 1, 'WITHSCORES')
  if not lowest[4] then
    return lowest[1], lowest[2]
  end
  local first = next_of_rank(waiting, lowest)
  return first[1], first[2], first == lowest and lowest[4] or first[2]
end

-- Read what is known of a line.
local function read_descriptor(line)
  local queue, name = line.queue, line.name
  local found = redis.call('HGET', queue[LINES], name)
  if found then
    line.limit_index, line.descriptor = unpack_descriptor(found)
    if line.descriptor then
      line.packed = string.sub(found, 2)
      return
    end
    redis.call('HDEL', queue[LINES], name)
  end
  local id = redis.call('ZRANGE', name, 0, 0)[1]
  local packed_row = id and redis.call('HGET', queue[MESSAGES], id)
  local row = packed_row and unpack_row(packed_row)
  line.limit_index = 0
  line.descriptor = { queue = queue, limits = { [0] = { [WAITING] = line.waiting } }, key_caps = row and row[KEY_CAPS] }
  line.packed = cmsgpack.pack(line.descriptor)
end

-- How many tasks of a line are taken at most: as many as the line has dispatches before the next line is ahead, by their
-- scores, but one at least; and one if a limit has slots or a log: what these leave for the next task is known only when
-- they are written.
local function max_batch_size(line)
  local most, score, rival = call.wanted, line.score, line.rival
  if rival and rank_of(rival) == rank_of(score) then
    local ahead = (virtual_time_of(rival) - virtual_time_of(score)) / stride_of(line.descriptor)
    most = math.max(1, math.ceil(ahead))
  end
  for _, requirement in ipairs(line.requirements) do
    for _, limit in ipairs(requirement.limits or {}) do
      if limit.tag == SLOTS and #call.taken >= call.free_processes then
        return 0
      elseif limit.tag == SLOTS then
        most, line.is_opaque, line.has_slots = 1, true, true
      elseif limit.tag == SLIDING_LOG then
        most, line.is_opaque = 1, true
      end
    end
  end
  return math.min(most, call.wanted - #call.taken)
end

-- The ids of the first tasks of a line. With a rival only those of the rank that is served.
local function first_ids(line, most)
  local ids, entries = {}, line.entries
  for i = 1, math.min(#entries, 2 * most), 2 do
    if line.rival and i > 1 and rank_of(entries[i + 1]) ~= rank_of(line.score) then
      break
    end
    ids[#ids + 1] = entries[i]
  end
  return ids
end

-- A wait is counted in the first bucket that is as long: bucket n has waits up to WAIT_BASE * 2^n us, the last one
-- all others. Twin: WAIT_BOUNDS in `celery_throttle/observe/totals.py`.
local WAIT_BASE, LAST_WAIT_BUCKET = 100000, 20

-- Count a task that is claimed with its units, by its row. To write little, each of these tasks stands for one unit that
-- was granted; 'granted' is increased by what its cost is more than that.
local function note_claim(batch, row)
  local mantissa, exponent = math.frexp(wait_of(row) / WAIT_BASE)
  local bucket = mantissa == 0.5 and exponent - 1 or exponent
  bucket = bucket < 0 and 0 or bucket > LAST_WAIT_BUCKET and LAST_WAIT_BUCKET or bucket
  batch.wait_counts[bucket] = (batch.wait_counts[bucket] or 0) + 1
  local costs = row[COSTS]
  for i = 1, #costs do
    if costs[i] ~= MILLION then
      batch.extra_costs[i] = (batch.extra_costs[i] or 0) + costs[i] - MILLION
    end
  end
end

local function write_claim_totals(batch, descriptor)
  for i, limit_keys in ipairs(descriptor.limits) do
    for bucket, tasks in pairs(batch.wait_counts) do
      increase_total(limit_keys[NAME], bucket, tasks)
    end
    if batch.extra_costs[i] then
      increase_total(limit_keys[NAME], 'granted', batch.extra_costs[i])
    end
  end
  if batch.handed_out > 0 then
    increase_totals(descriptor, 'handed_out', batch.handed_out)
  end
end

-- After the last task that the worker wants: when its limit has room for the next task of the line.
-- So a worker without a process polls for that start, and not at once. If another limit has less room, or if nobody
-- waits, the next call finds out.
local function predict_wait(line, batch, next_id)
  local costs = read_costs(line.queue[MESSAGES], next_id)
  if costs and set_costs(line.requirements, costs) then
    local wait, bottleneck = decide(line.requirements, true)
    if wait > 0 and bottleneck == line.limit_index and line.requirements.bookable then
      batch.wait, batch.bottleneck = wait, bottleneck
    end
  end
end

-- Whether the next task would be for a process that is not free yet, and its limits are too slow for that. If the task
-- returns to its line, its units are lost, or were idle until they are given back: so they are taken only if the limits
-- make up for them as soon.
local function is_too_slow(requirements)
  return #call.taken >= call.free_processes and is_slow(requirements, call.free_horizon)
end

-- Decide over tasks of a line in their order, until one has to wait; adds rows to the reply, and writes nothing.
-- Returns a table: the ids of the tasks that leave the line; the token and the packed claim of each, and of those with
-- marks; whether the limits have to be written; what to count; the wait (us) of the next task, nil if it was not decided
-- over, and its bottleneck.
local function decide_batch(line, ids)
  local batch = { leaving = {}, new_claims = {}, marked_claims = {}, has_taken = false, wait = nil, bottleneck = 0,
                  wait_counts = {}, extra_costs = {}, handed_out = 0 }
  local leaving, new_claims = batch.leaving, batch.new_claims
  local requirements, undefined = line.requirements, line.undefined
  local messages, limit_index, entries, slot_keys = line.queue[MESSAGES], line.limit_index, line.entries, line.slot_keys
  local field = limit_index > 0 and line.descriptor.limits[limit_index][FIELD]
  local claim_head = pack_claim_head(line.name, line.packed)
  for i, id in ipairs(ids) do
    if call.bytes >= BATCH_BYTES then
      call.visits = 0
      return batch
    end
    local packed = redis.call('HGET', messages, id)
    if packed then
      call.bytes = call.bytes + #packed + #claim_head
      local row = unpack_row(packed)
      local kind, wait, bottleneck = 0, 0, 0
      -- A task is handed out without units if it has expired or if nobody knows its limits: the gate decides then. So
      -- is one that cannot be read, which the worker puts into quarantine.
      if row and row[SURPLUS] then
        kind = 2
      elseif row and limit_index > 0 and not (row[EXPIRES] > 0 and row[EXPIRES] <= now) then
        if undefined and not call.is_registered then
          call.has_undefined, call.visits = true, 0
          batch.wait, batch.bottleneck = 0, limit_index
          return batch
        elseif not undefined and not set_costs(requirements, row[COSTS]) then
          row = nil
        elseif not undefined then
          wait, bottleneck = decide(requirements, true)
          kind = wait < 0 and 0 or 1
        end
      end
      if wait > (requirements.bookable and booking_horizon() or 0) then
        batch.wait, batch.bottleneck = wait, bottleneck
        return batch
      elseif kind == 1 and is_too_slow(requirements) then
        call.visits, call.lacks_process = 0, true
        return batch
      end
      wait = math.max(0, wait)
      local reply = { call.token, kind, wait, row and wait_of(row) or 0, row and row[MESSAGE] or '', id }
      local claim = claim_head .. cmsgpack.pack(id, tonumber(entries[2 * i]), packed)
      if kind == 1 then
        charge(requirements, now + wait)
        call.last_start = math.max(call.last_start or 0, now + wait)
        if requirements.has_shadows then
          shadow()(requirements, now + wait, 1)
        end
        reply[7], reply[8], reply[9], batch.has_taken = field, row[POSITION] or 0, slot_keys, true
        if row[SETTLES] then
          reply[9], reply[10] = slot_keys or {}, take_marks()(requirements, line.descriptor, row[COSTS])
        end
        if is_slow(requirements, LONG) then
          local marked_claims = batch.marked_claims
          marked_claims[#marked_claims + 1] = call.token
          marked_claims[#marked_claims + 1] = add_marks(claim, take_marks()(requirements))
        end
        note_claim(batch, row)
      else
        batch.handed_out = batch.handed_out + 1
      end
      call.taken[#call.taken + 1] = reply
      new_claims[#new_claims + 1] = call.token
      new_claims[#new_claims + 1] = claim
      call.token = call.token + 1
    end
    leaving[#leaving + 1] = id -- also if its row is lost
  end
  if batch.has_taken and #call.taken == call.wanted and not line.rival and not line.is_opaque then
    predict_wait(line, batch, entries[2 * #ids + 1])
  end
  return batch
end

-- Write a batch: first the claims, then the limits; the tasks leave the line last. A claim gets its marks after the
-- limits: if the script fails before, nothing is given back that was not taken.
local function write_batch(line, batch, has_others)
  if #batch.new_claims > 0 then
    if 2 * #call.taken == #batch.new_claims then
      -- The first claims of this call: with a lease they are requeued, whatever becomes of the worker.
      write_lease(call.workers, call.worker, call.lease_ends)
    end
    call_with('HSET', call.claims, batch.new_claims)
  end
  if batch.has_taken then
    write_states(line.requirements)
    call_with('HSET', call.claims, batch.marked_claims)
  end
  remove_tasks(line.name, line.descriptor, line.limit_index, batch.leaving, has_others)
  write_claim_totals(batch, line.descriptor)
end

-- Advance the virtual time of a line by some dispatches; remove it from the list if it has no tasks left. `task_score`
-- is that of its first task now; nil if it has none. Without a rival the line may stay where it is, unless virtual time
-- is about to wrap around: lines that enter take theirs from it.
local function advance_line(line, dispatches, task_score)
  local waiting, name, score, rival = line.waiting, line.name, line.score, line.rival
  local rank = rank_of(task_score)
  if not rank then
    redis.call('ZREM', waiting, name)
    if not rival then
      drop_empty_list(line.descriptor.limits[line.limit_index], line.queue, true)
    end
  elseif rank ~= rank_of(score) then
    update_rank(waiting, name, line.descriptor)
  elseif rival or virtual_time_of(score) >= TIME_MODULUS - WRAP_MARGIN then
    put_line(waiting, name, rank, virtual_time_of(score) + dispatches * stride_of(line.descriptor))
  end
end

-- Let a line wait for its next task, or move it to the list of the limit that blocks it now. Returns whether the
-- limit of this list has no room left.
local function let_wait(line, wait, bottleneck)
  local queue, waiting, descriptor = line.queue, line.waiting, line.descriptor
  local limit_keys = descriptor.limits[line.limit_index]
  if call.has_undefined then
    return true
  elseif bottleneck == line.limit_index then
    -- What cannot be booked ahead is not due ahead of its time either.
    redis.call('ZADD', queue[DUE], due_time(wait + (line.requirements.bookable and 0 or call.free_horizon)), waiting)
    if line.requirements.slots_full or wait > call.max_sleep then
      -- A released slot or a change of the limit may come sooner and has to find the list. It was registered when it
      -- began; this is for a server that has lost that.
      register_list(limit_keys, queue)
    end
    return true
  end
  attach_line(line.name, descriptor, bottleneck, wait)
  change_backlog(limit_keys, -redis.call('ZCARD', line.name))
  redis.call('ZREM', waiting, line.name)
  drop_empty_list(limit_keys, queue)
end

-- Serve the first line of a waiting list. Returns whether the list has nothing more for now.
local function serve_line(queue, waiting, name, score, rival)
  local line = { name = name, queue = queue, waiting = waiting, score = score, rival = rival, limit_index = 0,
                 descriptor = false, packed = '', requirements = false, undefined = nil, slot_keys = nil,
                 entries = false, is_opaque = false, has_slots = false }
  read_descriptor(line)
  local limit_index, descriptor = line.limit_index, line.descriptor
  if limit_index > 0 and descriptor.limits[limit_index][WAITING] ~= line.waiting then
    -- A script failed before it had moved the line completely.
    attach_line(line.name, descriptor, limit_index, 0)
    redis.call('ZREM', line.waiting, line.name)
    return false
  end
  line.requirements = limit_index > 0 and requirements_of(descriptor, {}) or {}
  if limit_index > 0 then
    line.undefined = load_requirements(call.definitions, descriptor, line.requirements)
  end
  local most = max_batch_size(line)
  if most == 0 then
    call.visits = 0
    return true
  end
  line.entries = redis.call('ZRANGE', line.name, 0, most, 'WITHSCORES')
  local ids = first_ids(line, most)
  if #ids == 0 and descriptor.limits[1] then
    repair()(line.queue)
    return false
  end
  if line.has_slots then -- one task is taken, with the next token
    local holder = holder_of(call.worker, call.token, ids[1])
    line.slot_keys = name_holder(line.requirements, descriptor, holder, call.lease_ends - now)
  end
  local batch = decide_batch(line, ids)
  call.lacks_process = call.lacks_process or batch.has_taken and is_too_slow(line.requirements)
  local dispatches = #batch.leaving
  if dispatches > 0 or #ids == 0 then
    local task_score = line.entries[2 * dispatches + 2]
    write_batch(line, batch, task_score ~= nil)
    advance_line(line, dispatches, task_score)
    if not task_score and not line.rival then
      return true
    end
  end
  return batch.wait and let_wait(line, batch.wait, batch.bottleneck)
end

-- Serve a list until its limit has no room left or no line waits. If the worker has not enough processes for that, the
-- list is due now: other lists that were due before come first the next time, and forecasts read since when it has had
-- room. Behind a limit that is too slow for processes that are not free, the list is left to the next call: its limits are
-- probably as slow, and its lines would be read in vain.
return function(queue, waiting)
  if call.lacks_process then
    call.visits = 0
    return
  end
  while #call.taken < call.wanted and call.visits > 0 do
    local name, score, rival = next_line(waiting)
    if not name then
      if redis.call('ZREM', queue[DUE], waiting) == 1 then
        repair()(queue)
      end
      return
    end
    call.visits = call.visits - 1
    if serve_line(queue, waiting, name, score, rival) then
      return
    end
  end
  redis.call('ZADD', queue[DUE], 'XX', 'GT', now, waiting)
end
