-- serve_line.lua: takes the first tasks of a line.
-- uses: claim_call, fair_service, decide_batch, leases, line_requirements, release_slots, slot_keys, remove_tasks
-- uses: attach_line, claim_totals
-- uses rarely: repair

-- What is known of a line of a waiting list: the index of the limit at which it waits, its descriptor, and the packed
-- descriptor. Index 0 if the server has lost the descriptor, or it cannot be read.
local function read_line(queue, waiting, line)
  local found = redis.call('HGET', queue[LINES], line)
  if found then
    local limit_index, packed = string.byte(found), string.sub(found, 2)
    local is_unpacked, descriptor = pcall(cmsgpack.unpack, packed)
    if is_unpacked and type(descriptor) == 'table' and (descriptor.limits or {})[limit_index] then
      return limit_index, descriptor, packed
    end
    redis.call('HDEL', queue[LINES], line)
  end
  local id = redis.call('ZRANGE', line, 0, 0)[1]
  local packed_row = id and redis.call('HGET', queue[MESSAGES], id)
  local row = packed_row and unpack_row(packed_row)
  local key_caps = row and row[KEY_CAPS]
  local descriptor = { queue = queue, limits = { [0] = { [WAITING] = waiting } }, key_caps = key_caps }
  return 0, descriptor, cmsgpack.pack(descriptor)
end

-- At most as many tasks as the line has dispatches before the next line, and one if a limit has slots or a log: what
-- these leave for the next task is known only when they are written. Also returns whether slots are taken.
local function max_batch_size(requirements, descriptor, score, rival)
  local most, has_slots = rival and dispatches_before(descriptor, score, rival) or call.wanted, false
  for _, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits or {}) do
      if limit.tag == SLOTS and #call.taken >= call.free_processes then
        return 0
      elseif limit.tag == SLOTS or limit.tag == SLIDING_LOG then
        most, has_slots = 1, has_slots or limit.tag == SLOTS
      end
    end
  end
  return math.min(most, call.wanted - #call.taken), has_slots
end

-- The ids of the first tasks of a line, given its first entries. With a rival only those of the rank that is served.
local function first_ids(entries, most, score, rival)
  local ids, rank = {}, rank_of(score)
  for i = 1, math.min(#entries, 2 * most), 2 do
    if rival and i > 1 and rank_of(entries[i + 1]) ~= rank then
      break
    end
    ids[#ids + 1] = entries[i]
  end
  return ids
end

-- Write a batch: first the claims, then the limits; the tasks leave the line last.
local function write_batch(batch, requirements, line, descriptor, limit_index, has_others)
  if #batch.new_claims > 0 then
    if 2 * #call.taken == #batch.new_claims then
      -- The first claims of this call: with a lease they are requeued, whatever becomes of the worker.
      write_lease(call.workers, call.worker, call.lease_ends)
    end
    call_with('HSET', call.claims, batch.new_claims)
  end
  if batch.has_taken then
    write_states(requirements)
  end
  remove_tasks(line, descriptor, limit_index, batch.leaving, has_others)
  write_claim_totals(batch, descriptor)
end

-- Let a line wait for its next task, or move it to the list of the limit that blocks it now. Returns whether the
-- limit of this list has no room left.
local function let_wait(queue, waiting, line, limit_index, descriptor, requirements, wait, bottleneck)
  local limit_keys = descriptor.limits[limit_index]
  if call.has_undefined then
    return true
  elseif bottleneck == limit_index then
    -- What cannot be booked ahead is not due ahead of its time either.
    redis.call('ZADD', queue[DUE], due_time(wait + (requirements.bookable and 0 or call.free_horizon)), waiting)
    if requirements.slots_full or wait > call.max_sleep then
      -- A released slot or a change of the limit may come sooner and has to find the list. It was registered when it
      -- began; this is for a server that has lost that.
      register_list(limit_keys, queue)
    end
    return true
  end
  attach_line(line, descriptor, bottleneck, wait)
  change_backlog(limit_keys, -redis.call('ZCARD', line))
  redis.call('ZREM', waiting, line)
  drop_empty_list(limit_keys, queue)
end

-- Serve the first line of a waiting list; score and rival as in `fair_service.lua`. Returns whether the list has
-- nothing more for now.
local function serve_line(queue, waiting, line, score, rival)
  local limit_index, descriptor, packed_descriptor = read_line(queue, waiting, line)
  if limit_index > 0 and descriptor.limits[limit_index][WAITING] ~= waiting then
    -- A script failed before it had moved the line completely.
    attach_line(line, descriptor, limit_index, 0)
    redis.call('ZREM', waiting, line)
    return false
  end
  local requirements = limit_index > 0 and requirements_of(descriptor, {}) or {}
  local holder = holder_of(call.worker, call.token)
  local undefined = limit_index > 0
    and load_requirements(call.definitions, descriptor, requirements, holder, call.lease_ends - now)
  local most, has_slots = max_batch_size(requirements, descriptor, score, rival)
  if most == 0 then
    call.visits = 0
    return true
  end
  local entries = redis.call('ZRANGE', line, 0, most, 'WITHSCORES')
  local ids = first_ids(entries, most, score, rival)
  if #ids == 0 and limit_index > 0 then
    repair()(queue)
    return false
  end
  local slot_keys = has_slots and slot_keys_of(requirements, descriptor) or nil
  local claim_head = pack_claim_head(line, packed_descriptor)
  local field = limit_index > 0 and descriptor.limits[limit_index][FIELD]
  local batch = decide_batch(ids, entries, queue[MESSAGES], claim_head, limit_index, field, requirements, undefined,
                             slot_keys)
  local dispatches = #batch.leaving
  if dispatches > 0 or #ids == 0 then
    local task_score = entries[2 * dispatches + 2]
    write_batch(batch, requirements, line, descriptor, limit_index, task_score ~= nil)
    advance_line(queue, waiting, line, limit_index, descriptor, score, rival, dispatches, task_score)
    if not task_score and not rival then
      return true
    end
  end
  local wait, bottleneck = batch.wait, batch.bottleneck
  return wait and let_wait(queue, waiting, line, limit_index, descriptor, requirements, wait, bottleneck)
end
