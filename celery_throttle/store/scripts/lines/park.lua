-- park.lua: decides over a task once more, or lets it join its line. Idempotent by task id.
-- KEYS  1   hash: definitions of limits
--       2   zset: identities of messages that were parked but may not be acknowledged yet
--       3   the task's line
--       4-7 the queue's lines, messages, due, polls
--       then per requirement: state, entries, pause of the name, pause of the key, backlog, waiting,
--       waiting-lists, waiting-list-index
--       then, if the broker deletes the queue with its last consumer: the zset `temporary`, see `heartbeat.lua`
--       last: head of the totals, see `counters.lua`
-- ARGV  2   task id
--       3   identity of the message: task id and how often it was retried or replaced
--       4   '1' if the broker says that it was delivered before
--       5   '1' if it may run now; '0' if there is no process for it; 'behind' if it was just sent and is only to
--           join tasks that wait
--       6   '1' if its run settles: it gets marks, see `take_marks.lua`
--       7   the message
--       8   the holder of its slots, if it takes any
--       9   packed doubles: a text takes longer to convert
--           1   rank of its priority, 0 to 255, lower ranks first
--           2   when it expires (us), 0 for never
--           3   longest wait (us) that is accepted, -1 for any
--           4   how long (us) an identity is remembered
--           5   first lease (us) of its slots
--           then per requirement: cost (millionths)
--       then per requirement: name, field
--       then identities whose acknowledgement is done
-- Reply {'alone'}                                       no task waits at its limits: nothing was done
--       {'admitted', marks, entries and waiting-lists of each slot}  a unit was free after all: run it
--       {'parked', position in its line, expected wait (us), index of the requirement that refuses, wait (us)}
--       {'known'}                                       it was parked before: acknowledge it, no more
--       {'late', expected wait (us), index, for how long (us) it is paused}    would wait too long: nothing was taken
--       {'full', index, max-waiting}    as many tasks wait already; 0: the queue of a leaky-queue is full
--       {'crowded', index, max-keys, wait (us)}    as many other keys are in use; -1: for ever
--       {'never', index, burst}                         its cost can never pass
--       {'unknown', index, now (us)}    it is not defined, or its calendar windows have run out

-- The expected wait (us) of the task at a position of its line, and the requirement that causes it. Lines at one limit
-- are served in turns, those of higher ranks later: so before the task at position n there are n tasks of each other
-- line, if all have the same rank and weight. Other ranks and weights are not counted. Nobody knows when a slot is
-- released: that counts as no wait.
local function expected_wait(requirements, descriptor, rank, position, bottleneck)
  local longest, slowest = 0, math.max(1, bottleneck)
  local next_rank = '(' .. format_integer((rank + 1) * RANK_SPAN)
  for i, requirement in ipairs(requirements) do
    local lines = redis.call('ZCOUNT', descriptor.limits[i][WAITING], '-inf', next_rank)
    local before = math.max(position - 1, math.min(requirement.waiting, position * lines))
    for _, limit in ipairs(requirement.limits) do
      local own = requirement.pause
      if limit.tag ~= SLOTS then
        own = math.max(own, limit.algorithm.check(limit, true))
          + math.ceil(before * limit.cost / MILLION * limit.p / limit.q)
      end
      if own > longest then
        longest, slowest = own, i
      end
    end
  end
  return longest, slowest
end

local unacknowledged, line, queue = KEYS[2], KEYS[3], { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local id, identity, mode, settles = ARGV[2], ARGV[3], ARGV[5], ARGV[6] == '1'
local rank, expires, max_wait, memory, lease, first_cost = struct.unpack('<ddddd', ARGV[9])
local count = #ARGV[9] / 8 - 5
local first_done = 10 + 2 * count

if #ARGV >= first_done then
  -- Changes nothing, but a server that is out of memory refuses it, and with it the script. If the first write needed no
  -- memory, such a server would let task after task join.
  redis.call('ZADD', unacknowledged, 'XX', 0, '')
  for i = first_done, #ARGV do
    redis.call('ZREM', unacknowledged, ARGV[i])
  end
  -- Now and then: identities that a crashed worker parked and never acknowledged.
  redis.call('ZREMRANGEBYSCORE', unacknowledged, '-inf', now - memory)
end
if ARGV[4] == '1' and redis.call('ZSCORE', unacknowledged, identity) then
  return { 'known' }
end

local descriptor, costs = { queue = queue, limits = {} }, {}
for i = 1, count do
  local key, arg = 8 * i, 8 + 2 * i
  descriptor.limits[i] = { ARGV[arg], ARGV[arg + 1], unpack(KEYS, key, key + 7) }
  costs[i] = struct.unpack('<d', ARGV[9], first_cost + 8 * (i - 1))
end
local requirements = requirements_of(descriptor, costs)
local undefined = load_requirements(KEYS[1], descriptor, requirements, ARGV[8], lease)
if undefined then
  return { 'unknown', undefined, format_integer(now) }
end
for i, requirement in ipairs(requirements) do
  measure_capacity(requirement, descriptor.limits[i])
end
descriptor.key_caps, descriptor.temporary = key_caps_of(requirements), #KEYS > 8 + 8 * count and KEYS[8 + 8 * count] or nil

local wait, bottleneck, component = decide(requirements, true)
if wait < 0 then
  increase_total(requirements[bottleneck].name, 'dropped_cost', 1)
  return { 'never', bottleneck, requirements[bottleneck].limits[component].burst }
end
local full_cap, cap_wait = find_full_key_cap(requirements)
if full_cap > 0 and redis.call('EXISTS', line) == 0 then
  increase_total(requirements[full_cap].name, 'dropped_keys', 1)
  return { 'crowded', full_cap, requirements[full_cap].max_keys, cap_wait }
end
if redis.call('HEXISTS', queue[MESSAGES], id) == 1 then
  local position = (redis.call('ZRANK', line, id) or 0) + 1
  local expected = expected_wait(requirements, descriptor, rank, position, bottleneck)
  return { 'parked', position, expected, math.max(1, bottleneck), wait }
end

-- The first requirement at which tasks wait; nil if there is none.
local function find_backlog()
  for i, requirement in ipairs(requirements) do
    if requirement.waiting > 0 then
      return i
    end
  end
end

if mode == 'behind' or mode == '1' and wait == 0 then
  local backlog = find_backlog()
  if backlog then
    bottleneck = backlog
  elseif mode == 'behind' then
    return { 'alone' }
  else
    return { 'admitted', take_for_run(requirements, descriptor, costs, 0, settles) }
  end
end

local full = find_full_queue(requirements)
if full then
  increase_total(requirements[full].name, 'dropped_full', 1)
  return { 'full', full, requirements[full].capacity.bound }
end
local score = next_task_score(line, rank)
local position = redis.call('ZCOUNT', line, '-inf', score) + 1
local expected, slowest = expected_wait(requirements, descriptor, rank, position, bottleneck)
if max_wait >= 0 and expected > max_wait then
  increase_total(requirements[slowest].name, 'dropped_late', 1)
  return { 'late', expected, slowest, requirements[slowest].pause }
end

local row = pack_row(line, costs, expires, ARGV[7], score, descriptor.key_caps, position,
                     settles or nil)
if position == 1 then
  join_and_wake(line, descriptor, id, score, row, wait, bottleneck)
else
  join_line(line, descriptor, id, score, row, wait, bottleneck, true)
end
increase_totals(descriptor, 'parked', 1)
if mode ~= 'behind' then
  redis.call('ZADD', unacknowledged, now, identity)
  redis.call('PEXPIRE', unacknowledged, expiry_ms(memory))
end
return { 'parked', position, expected, math.max(1, bottleneck), wait }
