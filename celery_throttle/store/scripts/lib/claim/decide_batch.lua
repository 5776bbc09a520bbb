-- decide_batch.lua: decides over the first tasks of a line, without writing anything.
-- uses: claim_call, decision, unpack_row, claim_totals, batch_bytes

-- Other tasks of the line have other costs. Returns whether there is one for each limit.
local function set_costs(requirements, costs)
  for i = 1, #requirements do
    local limits, cost = requirements[i].limits, costs[i]
    if type(cost) ~= 'number' then
      return false
    end
    for n = 1, #limits do
      limits[n].cost = cost
    end
  end
  return true
end

-- Whether a limit takes longer to make up for the cost of a task than a start may be booked ahead. Such units are
-- taken for free processes only, since they are lost if the task returns to its line.
local function is_expensive(requirements)
  for _, requirement in ipairs(requirements) do
    for _, limit in ipairs(requirement.limits) do
      if limit.tag ~= SLOTS and limit.cost / MILLION * limit.p > call.free_horizon * limit.q then
        return true
      end
    end
  end
  return false
end

-- Decide over tasks in their order, until one has to wait; adds rows to the reply.
--   ids           of the tasks; their scores are in `entries`
--   messages      key of their rows, each of which is read when it is decided over: the server may have lost it
--   claim_head    see `descriptor.lua`
--   field         of the limit at which the line waits
--   slot_keys     of the slots that each task takes, nil if it takes none
-- Returns a table: the ids of the tasks that leave the line; the token and the packed claim of each; whether the
-- limits have to be written; what to count; the wait (us) of the next task, nil if it was not decided over, and its
-- bottleneck.
local function decide_batch(ids, entries, messages, claim_head, limit_index, field, requirements, undefined, slot_keys)
  local batch = { leaving = {}, new_claims = {}, has_taken = false, wait = nil, bottleneck = 0, wait_counts = {},
                  extra_costs = {}, handed_out = 0 }
  local leaving, new_claims = batch.leaving, batch.new_claims
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
      if row and limit_index > 0 and not (row[EXPIRES] > 0 and row[EXPIRES] <= now) then
        if undefined and ARGV[11] == '0' then
          call.has_undefined, call.visits = true, 0
          batch.wait, batch.bottleneck = 0, limit_index
          return batch
        elseif not undefined and not set_costs(requirements, row[COSTS]) then
          row = nil
        elseif not undefined then
          if #call.taken >= call.free_processes and is_expensive(requirements) then
            call.visits = 0
            return batch
          end
          wait, bottleneck = decide(requirements, true)
          kind = wait < 0 and 0 or 1
        end
      end
      if wait > (requirements.bookable and booking_horizon() or 0) then
        batch.wait, batch.bottleneck = wait, bottleneck
        return batch
      end
      wait = math.max(0, wait)
      local reply = { call.token, kind, wait, row and now - row[PARKED] or 0, row and row[MESSAGE] or '', id }
      if kind == 1 then
        charge(requirements, now + wait)
        if requirements.has_shadows then
          shadow()(requirements, now + wait, 1)
        end
        reply[7], reply[8], reply[9], batch.has_taken = field, row[POSITION] or 0, slot_keys, true
        note_claim(batch, row)
      else
        batch.handed_out = batch.handed_out + 1
      end
      call.taken[#call.taken + 1] = reply
      new_claims[#new_claims + 1] = call.token
      new_claims[#new_claims + 1] = claim_head .. cmsgpack.pack(id, tonumber(entries[2 * i]), packed)
      call.token = call.token + 1
    end
    leaving[#leaving + 1] = id -- also if its row is lost
  end
  return batch
end
