-- poll_time.lua: when a worker polls a queue again.
-- uses: claim_call, lease_clock, line_data
-- uses rarely: repair

-- How often (us) channels of dead workers are forgotten; and for how long (us) a queue with lines remembers its
-- polls: processes may be busy as long.
local CLEANUP_INTERVAL, POLL_MEMORY = 60000000, 3600000000

-- If the clock was set back since a queue was written, move its due times back and forget its polls.
local function follow_queue_clock(queue)
  local written = -(redis.call('ZSCORE', queue[POLLS], WRITTEN) or 0)
  if written > now + FARTHEST then
    move_back(queue[DUE], written - now)
    redis.call('DEL', queue[POLLS])
  elseif math.floor(written / CLEANUP_INTERVAL) < math.floor(now / CLEANUP_INTERVAL) then
    redis.call('ZREMRANGEBYSCORE', queue[POLLS], '(0', format_integer(now))
  end
end

-- The first free poll time from `due` (us) on. Some worker has to poll at each due time, but not all: each takes a
-- time that is one gap behind the last one taken. So polls a second depend on the gap, not on the number of workers,
-- and a worker that fails costs one gap.
local function free_poll_time(queue, due)
  local gap = math.min(100000, math.max(10000, (due - now) / 10))
  local polls = redis.call('ZRANGE', queue[POLLS], format_integer(due - gap / 2),
                           '+inf', 'BYSCORE', 'LIMIT', 0, 64, 'WITHSCORES')
  local free = due
  for i = 2, #polls, 2 do
    local other = tonumber(polls[i])
    if other >= free + gap then
      break
    end
    free = math.max(free, other + gap)
  end
  return free
end

-- When (us) this worker polls a queue again. Writes it, unless that is now.
local function next_poll_time(queue)
  redis.call('ZREM', queue[POLLS], call.channel)
  local due = tonumber(redis.call('ZRANGE', queue[DUE], 0, 0, 'WITHSCORES')[2])
  if due and (#call.taken == call.wanted or call.visits == 0) then
    return now
  elseif not due and redis.call('EXISTS', queue[LINES]) == 1 then
    repair()(queue)
    return now
  end
  local poll = now + call.max_sleep
  if due then
    poll = math.min(poll, free_poll_time(queue, math.max(now, due - call.free_horizon)))
  end
  write_lease(queue[POLLS], call.channel, poll)
  redis.call('PEXPIRE', queue[POLLS], expiry_ms(due and POLL_MEMORY or 2 * call.max_sleep))
  return poll
end
