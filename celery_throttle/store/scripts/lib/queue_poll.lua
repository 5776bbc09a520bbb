-- queue_poll.lua: one queue of a claim call: serves its lists that are due, and chooses when this worker polls it next.

-- How often (us) channels of dead workers are forgotten; and for how long (us) a queue with lines remembers its
-- polls: processes may be busy as long.
local CLEANUP_INTERVAL, POLL_MEMORY = 60000000, 3600000000

-- If the clock was set back since a queue was written, move its due times back and forget its polls. Returns the gap
-- (us) between two polls, as it was last measured.
local function follow_queue_clock(queue)
  local written, gap = unpack(redis.call('ZMSCORE', queue[POLLS], WRITTEN, GAP))
  written = -(written or 0)
  if written > now + FARTHEST then
    move_back(queue[DUE], written - now)
    redis.call('DEL', queue[POLLS])
  elseif math.floor(written / CLEANUP_INTERVAL) < math.floor(now / CLEANUP_INTERVAL) then
    redis.call('ZREMRANGEBYSCORE', queue[POLLS], '(0', now)
  end
  return -(gap or -CLOSE / 2)
end

-- Starts that are at most this far (us) apart are claimed several in one call, if workers poll in time. The shortest and
-- the longest gap (us) between two polls.
local CLOSE, SHORTEST_GAP, LONGEST_GAP = 20000, 2500, 100000

-- A start is late if it is claimed less than this part of a horizon ahead. Then gaps are a third, and grow by GROWTH
-- again with each call that is not late.
local LATE, GROWTH = 3 / 10, 33 / 32

-- A poll is in time for a start if it is this part of a horizon ahead, or more: a worker may be somewhat late.
local IN_TIME = 4 / 10

-- A worker that is woken polls this long (us) after its last poll at the earliest.
local WAKE_UP_DELAY = 5000

-- The member of `polls` whose score is minus the gap (us) between two polls.
local GAP = ' '

-- How many polls of other workers a call looks at. And how long (us) the workers of a queue for which nothing is due sleep
-- between two polls in all, before each polls less often: 100 workers that poll every second, or 10 that poll every ten.
local MOST_POLLS, IDLE_SLEEP = 64, 100000000

-- When (us) other workers poll a queue, from a time (us) on.
local function other_polls(queue, from)
  local polls, times = redis.call('ZRANGE', queue[POLLS], from, '+inf', 'BYSCORE', 'LIMIT', 0, MOST_POLLS, 'WITHSCORES'), {}
  for i = 1, #polls, 2 do
    if polls[i] ~= call.channel then
      times[#times + 1] = tonumber(polls[i + 1])
    end
  end
  return times
end

-- Whether the first of some polls is in time for a start that is due (us) then.
local function is_in_time(polls, due)
  return polls[1] and polls[1] <= due - call.free_horizon * IN_TIME
end

-- When (us) the last poll of a queue is.
local function last_poll(queue)
  return tonumber(redis.call('ZRANGE', queue[POLLS], '+inf', now, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2])
end

-- The first free poll time from `from` (us) on. Some worker has to poll at each due time, but not all: each takes a time
-- that is whole gaps from the first. So polls a second depend on the gap, and not on the number of workers. A poll that is
-- much later than a time does not take it. Two workers take the first time if starts are far apart.
local function free_poll_time(queue, from, gap)
  local near = math.min(gap, CLOSE) / 4
  local polls, free = other_polls(queue, from - 2 * near), from
  if gap > CLOSE and (not polls[2] or polls[2] >= from + 2 * near) then
    return from
  end
  for i = 1, #polls do
    if polls[i] >= free + near then
      return free
    end
    while polls[i] > free - 2 * near do
      free = free + gap
    end
  end
  if #polls >= MOST_POLLS - 1 then -- no time is free among these
    free = math.max(free, free + math.ceil((last_poll(queue) + 2 * near - free) / gap) * gap)
  end
  return free
end

-- The same where starts are close and workers poll in time. Each poll is a gap after another poll, and not after what this
-- worker has claimed: else two chains of polls would share the starts, and each poll would find half of what it could. The
-- time is `from` if nobody else polls in time for what is due (us).
local function free_chain_time(queue, from, due, gap)
  local polls = other_polls(queue, math.max(now, due - call.free_horizon))
  if not is_in_time(polls, due) then
    return from
  end
  local free = polls[1] + gap
  for i = 2, #polls do
    if polls[i] >= free + gap * 3 / 4 then
      return free
    end
    free = math.max(free, polls[i] + gap)
  end
  return #polls >= MOST_POLLS - 1 and math.max(free, last_poll(queue) + gap) or free
end

-- Whether a start so far ahead is left to a worker that polls soon: it claims the start after it in the same call.
local function is_left(queue, due, gap)
  local is_early = gap > CLOSE / 2 and gap <= CLOSE and due > now + call.free_horizon * 3 / 4
  return is_early and is_in_time(other_polls(queue, now), due)
end

-- The gap (us) between two polls of a queue, from which this call took tasks or not. It is the time between two starts;
-- if these are close to each other, half a horizon, or as many whole times between two starts as one poll can book that
-- is half a horizon ahead. Where workers poll late, polls are closer. `before` is what was measured before.
local function measure_gap(before, due, has_taken)
  local spacing = has_taken and call.last_start and due - call.last_start or 0
  if spacing > CLOSE then
    return math.min(LONGEST_GAP, spacing)
  elseif spacing <= 0 then
    return before
  end
  local own = math.floor(call.is_late and before / 3 or before * GROWTH)
  if own < CLOSE / 2 then
    return math.max(SHORTEST_GAP, own)
  end
  local starts = math.min(call.wanted, math.floor(call.free_horizon / 2 / spacing) + 1)
  return math.max(CLOSE / 2, math.min(CLOSE, starts * spacing))
end

-- Wake others for a list that is due (us) then, as this worker has no process: unless one polls in time anyway, which is
-- not enough if more starts are due already.
local function wake_others(polls, due)
  local in_time = math.max(due, now + 2 * WAKE_UP_DELAY) - WAKE_UP_DELAY
  if due <= in_time or redis.call('ZCOUNT', polls, now, in_time) == 0 then
    wake(polls, in_time)
  end
end

-- When (us) this worker polls for a list that is due (us) then: a horizon ahead, so that a late poll delays no start. For
-- a start that is far from others two workers poll. Several close ones are claimed in one call, half a horizon ahead.
local function poll_time(queue, due, gap)
  local from = math.max(now, due - call.free_horizon)
  if gap > CLOSE then
    return free_poll_time(queue, from, gap)
  end
  from = math.max(from, math.min(now + gap, due - call.free_horizon / 2))
  if gap < CLOSE / 2 then
    return free_poll_time(queue, from, gap)
  end
  return free_chain_time(queue, from, due, gap)
end

-- When (us) this worker polls a queue again whose earliest list is due then, nil if there is none. Writes it, unless
-- that is now. A worker that has no process for what is due wakes others. `gap_before` is what was measured before.
local function next_poll_time(queue, due, gap_before, has_taken)
  local polls, gap = queue[POLLS], gap_before
  if due and call.visits == 0 or not due and redis.call('EXISTS', queue[LINES]) == 1 then
    redis.call('ZREM', polls, call.channel)
    if not due then
      repair()(queue)
    end
    -- No worker relies on this poll. Until it has to book a start, several processes may have become free: one call claims
    -- for all of them.
    return due and call.lacks_process and math.max(now, due - call.free_horizon * IN_TIME) or now
  end
  local is_now = false
  if due then
    gap = measure_gap(gap_before, due, has_taken)
    if #call.taken == call.wanted then
      redis.call('ZREM', polls, call.channel)
      wake_others(polls, due)
      is_now = call.wanted == 0 or due <= now + math.min(gap, CLOSE / 2)
    end
  end
  if gap ~= gap_before then
    redis.call('ZADD', polls, -gap, GAP)
    redis.call('PEXPIRE', polls, expiry_ms(POLL_MEMORY))
  end
  if is_now then
    return now
  end
  local is_soon = due and due - call.free_horizon < now + call.max_sleep
  local poll = is_soon and poll_time(queue, due, gap)
  if not is_soon then
    -- The more workers poll a queue for which nothing is due soon, the less often each does.
    local sleep = (1 + redis.call('ZCOUNT', polls, now, '+inf')) * call.max_sleep
    poll = now + math.floor(call.max_sleep * math.max(1, sleep / IDLE_SLEEP))
    if due and due - call.free_horizon < poll then
      poll = poll_time(queue, due, gap)
    end
  end
  write_lease(polls, call.channel, poll)
  redis.call('PEXPIRE', polls, expiry_ms(due and POLL_MEMORY or 2 * (poll - now)))
  return poll
end

local serve

-- Returns when (us) this worker polls the queue again.
return function(queue)
  local gap, taken_before = follow_queue_clock(queue), #call.taken
  while true do
    local earliest = redis.call('ZRANGE', queue[DUE], 0, 0, 'WITHSCORES')
    local due = tonumber(earliest[2])
    if not due or #call.taken >= call.wanted or call.visits <= 0 or due > now + booking_horizon()
        or is_left(queue, due, gap) then
      return next_poll_time(queue, due, gap, #call.taken > taken_before)
    end
    call.is_late = call.is_late or due < now + call.free_horizon * LATE
    serve = serve or serve_list() -- what decides is defined only if a list is due
    serve(queue, earliest[1])
  end
end
