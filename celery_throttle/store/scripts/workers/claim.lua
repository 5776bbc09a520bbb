-- claim.lua: a worker's one regular call: renews its lease, settles claims, and claims due tasks with their quota.
-- `queue_poll.lua` serves the lists of a queue that are due, and chooses when the worker polls the queue next. For each
-- list, `serve_list.lua` takes its lines in turn: of each it takes the units for the first tasks, writes the claims, and
-- removes the tasks.
-- KEYS  1   hash: definitions of limits
--       2   zset: identities of messages that were parked but may not be acknowledged yet
--       3   zset: workers -> end of their lease (us)
--       4   hash: claims of this worker, see `line_data.lua`
--       then per queue: lines, messages, due, polls
--       last: head of the totals, see `counters.lua`
-- ARGV  2   the worker
--       3   its channel
--       4   ten packed doubles: a text takes longer to convert
--           1   lease (us)
--           2   how many tasks it wants; 0 only renews and settles, and lets other workers poll the queues that are
--               given
--           3   how far ahead (us) a start may be booked for tasks that have a free process
--           4   the token of the first task taken; the following ones count up
--           5   longest time (us) between two polls
--           6   how many tokens to settle follow
--           7   how many slots to release follow
--           8   1 if the worker has registered its limits since its last call
--           9   how many free processes it has. The other tasks that it wants will have one in a moment, which is
--               too early to take a slot of a concurrency limit for them
--           10  how far ahead (us) a start may be booked for these
--       then the tokens to settle, with a '-' before one that was not started; then per slot to release: entries,
--       waiting-lists, holder; then identities whose acknowledgement is done
-- Reply {next poll (us from now), a worker whose lease ran out or '',
--        {token, kind, starts in (us), waited (us), message, task id, field, position, slots, marks}, ...}
--       The next poll is -1 if a line needs a limit that is not defined, or the windows of its calendar have run out:
--       the worker registers its limits first.
--       kind 1: admitted; field of the limit at which the task waited last; position in the line when it joined, 0
--       if unknown; slots, if it takes any, are entries and waiting-lists of each; marks, if its run settles, see
--       `take_marks.lua`. kind 0: no unit was taken, as the task has expired or can never pass; the row ends with its id.
--       kind 0 with an empty message: the task cannot be read. kind 2: as kind 0, but the task is surplus, see
--       `line_data.lua`: it ends as revoked.
-- The work is bounded by the tasks wanted, of which at most 16 more lines are looked at, and by their bytes. All tasks
-- of a line are decided first, then written, each structure once.

-- The byte before the token of a claim that was not started.
local MINUS = 45

-- Settle the claims and release the slots that are listed in the arguments. Begins with a write that needs no memory. The
-- units of a task that was not started are given back, see `settlement.lua`.
local function settle_claims()
  local started, unstarted, acknowledged, first_slot = {}, {}, {}, 5 + call.settled
  local identities = first_slot + 3 * call.releases
  for i = 5, first_slot - 1 do
    local tokens = string.byte(ARGV[i]) == MINUS and unstarted or started
    tokens[#tokens + 1] = ARGV[i]
  end
  if started[1] then
    call_with('HDEL', call.claims, started)
  else
    work_without_memory()
  end
  for i = 1, #unstarted do
    local token = string.sub(unstarted[i], 2)
    local claim = redis.call('HGET', call.claims, token)
    if claim then
      local _, descriptor, id, _, row, marks = unpack_claim(claim)
      if descriptor then
        release_slots(descriptor, call.worker, token, id, call.wake_later)
      end
      redis.call('HDEL', call.claims, token)
      if marks then
        refund_claim(call.definitions, descriptor, row, marks, call.wake_later)
      end
    end
  end
  for i = first_slot, identities - 1, 3 do
    release_slot(ARGV[i], ARGV[i + 1], ARGV[i + 2], call.wake_later)
  end
  for i = identities, #ARGV do
    acknowledged[#acknowledged + 1] = ARGV[i]
  end
  call_with('ZREM', call.unacknowledged, acknowledged)
end

-- A worker whose lease has run out, '' if there is none. The lease of this one is about to be renewed.
local function find_dead_worker()
  local expired = redis.call('ZRANGE', call.workers, '-inf', now, 'BYSCORE',
                             'LIMIT', 0, 3, 'WITHSCORES')
  if expired[1] == WRITTEN and -expired[2] > now + FARTHEST then
    follow_clock(call.workers)
    return find_dead_worker()
  end
  for i = 1, #expired, 2 do
    if expired[i] ~= WRITTEN and expired[i] ~= call.worker then
      return expired[i]
    end
  end
  return ''
end

settle_claims()
local dead_worker = find_dead_worker()

local poll, poll_queue
for key = 5, #KEYS - 1, 4 do
  poll_queue = poll_queue or queue_poll() -- defined only if there is a queue: many calls only settle
  local own = poll_queue({ KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3] })
  poll = math.min(poll or own, own)
end

if #call.taken == 0 then
  -- A worker has a lease as long as it has claims, so that these are requeued when the lease runs out, however long
  -- no worker polls. Nothing is kept of a worker without claims.
  if redis.call('EXISTS', call.claims) == 1 then
    write_lease(call.workers, call.worker, call.lease_ends)
  else
    remove_lease(call.workers, call.worker)
  end
end
-- This worker takes most of the slots that it has released. Others are woken for the rest.
for _, queue_keys in ipairs(call.wake_later) do
  if redis.call('ZCOUNT', queue_keys[1], '-inf', now) > 0 then
    wake(queue_keys[2], now)
  end
end
return { call.has_undefined and -1 or (poll or now + call.max_sleep) - now, dead_worker, unpack(call.taken) }
