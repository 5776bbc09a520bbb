-- park.lua: decides over tasks once more, or lets them join their lines. All tasks of one line need the same limits and
-- keys, and different lines may share some of them. Idempotent by task id.
-- KEYS  1   hash: definitions of limits
--       2   zset: identities of messages that were parked but may not be acknowledged yet
--       then per line
--           1   the line
--           2-5 the queue's lines, messages, due, polls
--           then per requirement: state, entries, pause of the name, pause of the key, backlog, waiting,
--           waiting-lists, waiting-list-index
--           then, if the broker deletes the queue with its last consumer: the zset `temporary`, see `heartbeat.lua`
--           then, if only one task of the line may wait: its surplus line and the waiting list of that, see
--           `line_data.lua`
--       last: head of the totals, see `counters.lua`
-- ARGV  2   packed doubles: a text takes longer to convert
--           1   how long (us) an identity is remembered
--           2   first lease (us) of slots
--           3   how many identities whose acknowledgement is done
--           4   how many lines
--           5   how far ahead (us) a start may be booked
--           then per line
--               1   how many tasks
--               2   how many requirements
--               3   1 if it has the key `temporary`
--               4   which of its tasks may wait: 0 all, 1 the newest, 2 the first
--       then the identities whose acknowledgement is done
--       then per line: for each requirement its name and field; then per task
--           1   task id
--           2   identity of the message: task id and how often it was retried or replaced
--           3   the message
--           4   the holder of its slots, if it takes any
--           5   packed doubles
--               1   rank of its priority, 0 to 255, lower ranks first
--               2   when it expires (us), 0 for never
--               3   longest wait (us) that is accepted, -1 for any
--               4   1 if the broker says that it was delivered before
--               5   0 if it is to join its line; 1 if it may run now; 2 if it was just sent and is only to join tasks
--                   that wait; 3 if there is no process for it, and it is only to join its line if it could not run now
--               6   1 if its run settles
--               then per requirement: cost (millionths)
-- Reply for each task
--       {'alone'}                                       no task waits at its limits: nothing was done
--       {'admitted', starts in (us), marks, entries and waiting-lists of each slot}  a unit was free after all: run it.
--                                                       For the marks see `take_for_run`
--       {'parked', position in its line, expected wait (us), index of the requirement that refuses, wait (us)}
--       {'known'}                                       it was parked before: acknowledge it, no more
--       {'late', expected wait (us), index, for how long (us) it is paused}    would wait too long: nothing was taken
--       {'full', index, max-waiting}    as many tasks wait already; 0: the queue of a leaky-queue is full
--       {'surplus'}                                     another task of the line waits, which was first
--       {'crowded', index, max-keys, wait (us)}    as many other keys are in use; -1: for ever
--       {'never', index, burst}                         its cost can never pass
--       {'unknown', index, now (us)}    it is not defined, or its calendar windows have run out
-- An index is that of a requirement of the line.

local JOINS, MAY_RUN, JUST_SENT, FIRST_COST, FIRST = 0, 1, 2, 49, 2

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

local unacknowledged, memory, lease, done, line_count, horizon = KEYS[2], struct.unpack('<ddddd', ARGV[2])

if done > 0 or line_count > 1 then
  -- Changes nothing, but a server that is out of memory refuses it, and with it the script. If the first write needed no
  -- memory, such a server would let task after task join.
  redis.call('ZADD', unacknowledged, 'XX', 0, '')
end
if done > 0 then
  for i = 3, 2 + done do
    redis.call('ZREM', unacknowledged, ARGV[i])
  end
  -- Now and then: identities that a crashed worker parked and never acknowledged.
  redis.call('ZREMRANGEBYSCORE', unacknowledged, '-inf', now - memory)
end

-- Of all tasks that have joined: their ids; the identities that will be remembered, and what is written to remember
-- them; and how many tasks by the name of a limit.
local has_joined, is_remembered, remembered, joined = {}, {}, {}, {}

-- Read a line whose keys and arguments begin at positions. Returns it, and the positions behind them. It is a table:
--   name, descriptor            see `line_data.lua`
--   tasks                       how many tasks this call has for it
--   kept                        which of its tasks may wait
--   requirements, undefined     see `load_line`
--   rank, score, position       of the task that joined last; false before
--   limit_index                 of the limit at which the line waits; false before a task has joined
--   joined                      how many tasks have joined
--   members, rows               of the tasks that follow another one of this call: they are written together; false
--                               if there are none
local function read_line(number, key, arg)
  local tasks, count, temporary, kept = struct.unpack('<dddd', ARGV[2], 32 * number + 9)
  local descriptor = { queue = { KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4] }, limits = {} }
  local line = { name = KEYS[key], descriptor = descriptor, tasks = tasks, kept = kept, requirements = false,
                 undefined = false, rank = false, score = false, position = false, limit_index = false, joined = 0,
                 members = false, rows = false }
  key = key + 5
  for i = 1, count do
    descriptor.limits[i] = { ARGV[arg], ARGV[arg + 1], unpack(KEYS, key, key + 7) }
    key, arg = key + 8, arg + 2
  end
  if temporary == 1 then
    descriptor.temporary, key = KEYS[key], key + 1
  end
  if kept > 0 then
    descriptor.surplus, key = { KEYS[key], KEYS[key + 1] }, key + 2
  end
  return line, key, arg
end

-- Load the requirements of a line, as the tasks before have left them. `undefined` is nil, or the index of the first that
-- is not defined.
local function load_line(line)
  local descriptor = line.descriptor
  local requirements = requirements_of(descriptor, {})
  local undefined = load_requirements(KEYS[1], descriptor, requirements)
  for i = 1, undefined and 0 or #requirements do
    measure_capacity(requirements[i], descriptor.limits[i])
  end
  descriptor.key_caps = key_caps_of(requirements)
  line.requirements, line.undefined = requirements, undefined
end

local function write_followers(line)
  if line.rows then
    join_behind(line.name, line.descriptor, line.members, line.rows)
    line.members, line.rows = false, false
  end
end

-- Decide over the task of a line whose arguments begin at a position. Returns its reply.
local function park(line, arg)
  local id, identity, holder, settings = ARGV[arg], ARGV[arg + 1], ARGV[arg + 3], ARGV[arg + 4]
  local rank, expires, max_wait, redelivered, mode, settles = struct.unpack('<dddddd', settings)
  if redelivered == 1 and (is_remembered[identity] or redis.call('ZSCORE', unacknowledged, identity)) then
    return { 'known' }
  elseif line.undefined then
    return { 'unknown', line.undefined, format_integer(now) }
  end
  local name, descriptor, requirements, kept = line.name, line.descriptor, line.requirements, line.kept
  local queue, costs = descriptor.queue, {}
  for i = 1, #requirements do
    costs[i] = struct.unpack('<d', settings, FIRST_COST + 8 * (i - 1))
  end
  set_costs(requirements, costs)
  local wait, bottleneck, component = decide(requirements, true)
  if wait < 0 then
    increase_total(requirements[bottleneck].name, 'dropped_cost', 1)
    return { 'never', bottleneck, requirements[bottleneck].limits[component].burst }
  end
  local full_cap, cap_wait = find_full_key_cap(requirements)
  if full_cap > 0 and redis.call('EXISTS', name) == 0 then
    increase_total(requirements[full_cap].name, 'dropped_keys', 1)
    return { 'crowded', full_cap, requirements[full_cap].max_keys, cap_wait }
  end
  if has_joined[id] then
    write_followers(line)
  end
  if redis.call('HEXISTS', queue[MESSAGES], id) == 1 then
    local position = (redis.call('ZRANK', name, id) or 0) + 1
    local expected = expected_wait(requirements, descriptor, rank, position, bottleneck)
    return { 'parked', position, expected, math.max(1, bottleneck), wait }
  end

  if mode == JUST_SENT or mode ~= JOINS and wait <= (requirements.bookable and horizon or 0) then
    local backlog
    for i = #requirements, 1, -1 do
      backlog = requirements[i].waiting > 0 and i or backlog
    end
    if backlog then
      bottleneck = backlog
    elseif mode == MAY_RUN then
      return { 'admitted', wait, take_for_run(requirements, descriptor, costs, wait, settles == 1, holder, lease) }
    else
      return { 'alone' }
    end
  end

  local replaces = kept > 0 and redis.call('EXISTS', name) == 1
  if replaces and kept == FIRST then
    increase_totals(descriptor, 'dropped_surplus', 1)
    return { 'surplus' }
  end
  local full = not replaces and find_full_queue(requirements)
  if full then
    increase_total(requirements[full].name, 'dropped_full', 1)
    return { 'full', full, requirements[full].capacity.bound }
  end
  local follows, score, position = rank == line.rank and kept == 0, nil, nil
  if follows then
    score, position = line.score + 1, line.position + 1
  else
    write_followers(line)
    score = next_task_score(name, rank)
    position = replaces and 1 or redis.call('ZCOUNT', name, '-inf', score) + 1
  end
  local expected, slowest = expected_wait(requirements, descriptor, rank, position, bottleneck)
  if max_wait >= 0 and expected > max_wait then
    increase_total(requirements[slowest].name, 'dropped_late', 1)
    return { 'late', expected, slowest, requirements[slowest].pause }
  end

  local row = pack_row(name, costs, expires, ARGV[arg + 2], score, descriptor.key_caps, position, settles == 1 or nil)
  local ended = 0
  if replaces then
    line.limit_index = join_line(name, descriptor, id, score, row, wait, bottleneck)
    ended = end_others(name, descriptor, id, wait)
  elseif position == 1 then
    line.limit_index = join_and_wake(name, descriptor, id, score, row, wait, bottleneck)
  elseif follows then
    line.members, line.rows = line.members or {}, line.rows or {}
    local members, rows = line.members, line.rows
    members[#members + 1], members[#members + 2] = format_integer(score), id
    rows[#rows + 1], rows[#rows + 2] = id, row
  else
    line.limit_index = join_line(name, descriptor, id, score, row, wait, bottleneck, true)
  end
  line.rank, line.score, line.position, line.joined = rank, score, position, line.joined + 1
  local requirement = requirements[line.limit_index]
  requirement.waiting, requirement.capacity.room = requirement.waiting + 1 - ended, requirement.capacity.room - 1 + ended
  has_joined[id] = true
  if mode ~= JUST_SENT then
    is_remembered[identity] = true
    remembered[#remembered + 1], remembered[#remembered + 2] = format_integer(now), identity
  end
  return { 'parked', position, expected, math.max(1, bottleneck), wait }
end

local replies, key, arg = {}, 3, 3 + done
for number = 1, line_count do
  local line
  line, key, arg = read_line(number, key, arg)
  load_line(line)
  for task = 1, line.tasks do
    local reply = park(line, arg)
    replies[#replies + 1], arg = reply, arg + 5
    if reply[1] == 'admitted' and task < line.tasks then
      load_line(line)
    end
  end
  -- The next line may have some of its limits.
  write_followers(line)
  for _, requirement in ipairs(line.joined > 0 and line.requirements or {}) do
    joined[requirement.name] = (joined[requirement.name] or 0) + line.joined
  end
end
for name, tasks in pairs(joined) do
  increase_total(name, 'parked', tasks)
end
if remembered[1] then
  call_with('ZADD', unacknowledged, remembered)
  redis.call('PEXPIRE', unacknowledged, expiry_ms(memory))
end
return replies
