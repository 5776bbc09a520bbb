-- claim.lua: a worker's one regular call: renews its lease, settles claims, and claims due tasks with their quota.
-- For each list that is due, `serve_list.lua` takes its lines in turn; of each, `serve_line.lua` writes the claims and
-- removes the tasks, for which `decide_batch.lua` has taken the units.
-- uses: claim_call, settle_claims, poll_time
-- uses rarely: serve_list
-- KEYS  1   hash: definitions of limits
--       2   zset: identities of messages that were parked but may not be acknowledged yet
--       3   zset: workers -> end of their lease (us)
--       4   hash: claims of this worker, see `line_data.lua`
--       then per queue: lines, messages, due, polls
--       last: head of the totals, see `counters.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   its channel
--       4   lease (us)
--       5   how many tasks it wants; 0 only renews and settles
--       6   how far ahead (us) a start may be booked for tasks that have a free process
--       7   the token of the first task taken; the following ones count up
--       8   longest time (us) between two polls
--       9   how many tokens to settle follow
--       10  how many slots to release follow
--       11  '1' if the worker has registered its limits since its last call
--       12  how many free processes it has. The other tasks that it wants will have one in a moment, which is
--           too early to take a slot of a concurrency limit for them
--       13  how far ahead (us) a start may be booked for these
--       then the tokens to settle, with a '-' before one that was not started; then per slot to release: entries,
--       waiting-lists, holder; then identities whose acknowledgement is done
-- Reply {next poll (us from now), a worker whose lease ran out or '',
--        {token, kind, starts in (us), waited (us), message, task id, field, position, slots}, ...}
--       The next poll is -1 if a line needs a limit that is not defined, or the windows of its calendar have run out:
--       the worker registers its limits first.
--       kind 1: admitted; field of the limit at which the task waited last; position in the line when it joined, 0
--       if unknown; slots, if it takes any, are entries and waiting-lists of each. kind 0: no unit was taken, as the
--       task has expired or can never pass; it has no field, position and slots.
--       kind 0 with an empty message: the task cannot be read.
-- The work is bounded by the tasks wanted, of which at most 16 more lines are looked at, and by their bytes. All tasks
-- of a line are decided first, then written, each structure once.

-- A server that is out of memory runs a script whose first write frees memory: so lines drain and make room.
redis.call('ZREM', call.workers, 'nobody')
follow_clock(call.workers)
settle_claims()
local expired = redis.call('ZRANGE', call.workers, '(0', format_integer(now), 'BYSCORE', 'LIMIT', 0, 2)
local dead_worker = expired[expired[1] == call.worker and 2 or 1] or '' -- its own lease is about to be renewed

local poll, serve = now + call.max_sleep, nil
for key = 5, #KEYS - 1, 4 do
  local queue = { KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3] }
  follow_queue_clock(queue)
  while #call.taken < call.wanted and call.visits > 0 do
    local horizon = format_integer(now + booking_horizon())
    local waiting = redis.call('ZRANGE', queue[DUE], '-inf', horizon, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not waiting then
      break
    end
    serve = serve or serve_list() -- what decides is defined only if a list is due
    serve(queue, waiting)
  end
  poll = math.min(poll, next_poll_time(queue))
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
  if redis.call('ZCOUNT', queue_keys[1], '-inf', format_integer(now)) > 0 then
    wake(queue_keys[2], now)
  end
end
return { call.has_undefined and -1 or poll - now, dead_worker, unpack(call.taken) }
