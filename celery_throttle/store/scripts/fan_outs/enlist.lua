-- enlist.lua: lets tasks of a fan-out join their lines, each of them once, whatever became of it since.
-- KEYS  1   hash: definitions of limits
--       2   record of the fan-out, see `fan_outs.lua`
--       3   zset: the keys of the records of all fan-outs, by when (us) each was last found
--       then per queue: lines, messages, due, polls; then per requirement and queue: state, entries, pause of the name,
--       pause of the key, backlog, waiting, waiting-lists, waiting-list-index; then the lines; then the head of
--       the totals, see `counters.lua`
-- ARGV  2   how many tasks of the fan-out may wait in this shard; -1 for any number
--       3   how long (us) to keep the record after no task waits
--       4   '1' if these are the last tasks
--       5   how many queues
--       6   how many requirements, each for one queue: limits, and the fan-out's own name
--       7   the key that pauses the fan-out
--       8   its name
--       9   the names of the shards that have a part of it as far as that is known, each after a space; they are added
--           to those in the record; empty for none
--       then per requirement: name, field
--       then per line: packed {index of its queue, indexes of its requirements} (2 bytes each), that of the fan-out last
--       then per task: packed {index of its line (2 bytes), its number in the record (1), rank of its priority (1; 0
--       to 255, lower ranks first), 1 if its run settles (1), 1 if it ignores its result (1), when it expires (us; 0 for
--       never; 8), per limit: cost (millionths; 8)}; its id; its message
-- Reply {'done', tasks dealt with, how many of these were sent by this call, waiting}
--       {'hold', ...the same}    as many tasks wait as may, of the fan-out or at a limit: go on with the next one later
--       {'crowded', ...the same, wait (us), index of its requirement, max-keys}    likewise: as many keys are in use;
--                       -1 for ever
--       {'never', ...the same, index of its requirement, burst}    the cost of the next task can never pass
--       {'cancelled', ...the same}    the fan-out was cancelled: do not send the rest
--       {'unknown', index, now (us)}    nothing was done: this requirement is not defined, or its calendar windows
--                       have run out

-- How many others a new fan-out looks after, and how long (ms) the index is kept after the last one: a year.
local INDEX_CHECKS, INDEX_KEPT_MS = 10, 31536000000

local record, max_waiting, keep = KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('HEXISTS', record, 'cancelled') == 1 then
  return { 'cancelled', 0, 0, tonumber(redis.call('HGET', record, 'waiting') or 0) }
end

-- Read the arguments that are lists. `key` and `arg` are the positions of the next ones.
local queues, all, costs, lines = {}, { limits = {} }, {}, {}
local key, arg = 4, 10
for i = 1, tonumber(ARGV[5]) do
  queues[i], key = { unpack(KEYS, key, key + 3) }, key + 4
end
for i = 1, tonumber(ARGV[6]) do
  all.limits[i] = { ARGV[arg], ARGV[arg + 1], unpack(KEYS, key, key + 7) }
  costs[i], key, arg = MILLION, key + 8, arg + 2
end
local requirements = requirements_of(all, costs)
local undefined = #requirements > 0 and load_requirements(KEYS[1], all, requirements)
if undefined then
  return { 'unknown', undefined, format_integer(now) }
end
local capacities = {}
for i, requirement in ipairs(requirements) do
  local backlog = all.limits[i][BACKLOG]
  measure_capacity(requirement, all.limits[i])
  -- One limit and key, whatever the queues of its tasks.
  capacities[backlog] = capacities[backlog] or requirement.capacity
  requirement.capacity = capacities[backlog]
end

-- Add the fan-out to the index. A record expires by itself and leaves its key there, so each new fan-out looks after
-- some of the others.
local function index_fan_out(index)
  for _, other in ipairs(redis.call('ZRANGE', index, 0, INDEX_CHECKS - 1)) do
    if redis.call('EXISTS', other) == 1 then
      redis.call('ZADD', index, format_integer(now), other)
    else
      redis.call('ZREM', index, other)
    end
  end
  redis.call('ZADD', index, format_integer(now), record)
  redis.call('PEXPIRE', index, INDEX_KEPT_MS)
end

-- Add shards to those that have a part of the fan-out.
local function add_shards(shards)
  local known = redis.call('HGET', record, 'shards') or ''
  for shard in string.gmatch(shards, '%S+') do
    if not string.find(known .. ' ', ' ' .. shard .. ' ', 1, true) then
      known = known .. ' ' .. shard
    end
  end
  redis.call('HSET', record, 'shards', known)
end

-- Write what is missing in the record. Returns the numbers of the queues, by queue.
local function open_fan_out(pause, name, shards)
  if redis.call('HSETNX', record, 'name', name) == 1 then
    index_fan_out(KEYS[3])
  end
  for _, field in ipairs({ 'old_at', 'new_at' }) do
    redis.call('HSETNX', record, field, format_integer(now))
  end
  for _, field in ipairs({ 'waiting', 'sent', 'old_ended', 'new_ended' }) do
    redis.call('HSETNX', record, field, 0)
  end
  redis.call('HSET', record, 'keep', format_integer(keep), 'pause', pause)
  if shards ~= '' then
    add_shards(shards)
  end
  local numbers, known = {}, record .. ':queues'
  for _, queue in ipairs(queues) do
    local number = redis.call('HGET', known, queue[LINES])
    if not number then
      number = format_integer(redis.call('HLEN', known) / 2)
      redis.call('HSET', known, queue[LINES], number, number, cmsgpack.pack(queue))
    end
    numbers[queue] = number
  end
  return numbers
end

-- Read a line. It is a table:
--   name            the line
--   descriptor      see `line_data.lua`
--   requirements    of its tasks
--   is_known        whether it holds tasks
--   first_rank      the lowest rank added by this call; nil before the first task
--   last_scores     rank -> score of the last task of that rank added by this call
--   last_positions  rank -> its position
--   joined          how many tasks this call has added; nil before the first
--   members, rows   {score, id, ...} and {id, packed row, ...} of the tasks that are not written yet
local function read_line(name, packed)
  local queue = queues[struct.unpack('<H', packed)]
  local line = { name = name, requirements = {}, last_scores = {}, last_positions = {}, members = {}, rows = {} }
  line.descriptor = { queue = queue, limits = {}, fan_out = record }
  for from = 3, #packed, 2 do
    local i, n = struct.unpack('<H', packed, from), #line.requirements + 1
    line.requirements[n], line.descriptor.limits[n] = requirements[i], all.limits[i]
  end
  line.descriptor.key_caps, line.descriptor.weight = key_caps_of(line.requirements), weight_of(line.requirements)
  line.is_known = redis.call('EXISTS', name) == 1
  line.cost_format = '<' .. string.rep('d', #line.requirements - 1)
  return line
end

-- Write a task that comes first in its line.
local function join_first(line, id, rank, score, row, task_costs)
  set_costs(line.requirements, task_costs)
  local wait, bottleneck = decide(line.requirements, true)
  join_and_wake(line.name, line.descriptor, id, score, row, wait, bottleneck)
  line.is_known, line.first_rank = true, rank
end

-- Add a task to its line. Those behind the first are written by `write_others`.
local function add_task(line, id, rank, settles, expires, message, task_costs)
  local last = line.last_scores[rank]
  local score = last and last + 1 or next_task_score(line.name, rank)
  -- Tasks of lower ranks that are added by this call, and not written yet, are not counted.
  local position = last and line.last_positions[rank] + 1
    or redis.call('ZCOUNT', line.name, '-inf', format_integer(score)) + 1
  local row = pack_row(line.name, task_costs, expires, message, score, line.descriptor.key_caps, position,
                       settles == 1 or nil)
  if not line.first_rank or rank < line.first_rank then
    join_first(line, id, rank, score, row, task_costs)
  else
    local members, rows = line.members, line.rows
    members[#members + 1], members[#members + 2] = format_integer(score), id
    rows[#rows + 1], rows[#rows + 2] = id, row
  end
  line.last_scores[rank], line.last_positions[rank] = score, position
  line.joined = (line.joined or 0) + 1
  for _, requirement in ipairs(line.requirements) do
    requirement.capacity.room = requirement.capacity.room - 1
  end
end

local function write_others()
  for _, line in ipairs(lines) do
    if line.rows[1] then
      join_behind(line.name, line.descriptor, line.members, line.rows)
    end
    if line.joined then
      increase_totals(line.descriptor, 'parked', line.joined)
    end
  end
end

-- Why a task must not join its line, as the end of the reply; nil if it may. `waiting_tasks` of the fan-out wait now.
local function refusal_of(line, task_costs, waiting_tasks)
  if max_waiting >= 0 and waiting_tasks >= max_waiting or find_full_queue(line.requirements) then
    return { 'hold' }
  end
  local full_cap, cap_wait = 0, 0
  if not line.is_known then
    full_cap, cap_wait = find_full_key_cap(line.requirements)
  end
  if full_cap > 0 then
    return { 'crowded', cap_wait, full_cap, line.requirements[full_cap].max_keys }
  end
  for i, requirement in ipairs(line.requirements) do
    for _, limit in ipairs(requirement.limits) do
      if task_costs[i] > limit.burst * MILLION and limit.tag ~= SLOTS then
        return { 'never', i, limit.burst }
      end
    end
  end
end

-- Whether a task waits in its line already: an earlier call failed before it could record that. Nil if the same id
-- waits in another line.
local function is_in_line(line, id)
  if redis.call('HEXISTS', line.descriptor.queue[MESSAGES], id) == 1 then
    return redis.call('ZSCORE', line.name, id) and true or nil
  end
  return false
end

for i = key, #KEYS - 1 do
  lines[#lines + 1], arg = read_line(KEYS[i], ARGV[arg]), arg + 1
end
local numbers = open_fan_out(ARGV[7], ARGV[8], ARGV[9])

-- What is to be recorded of the tasks sent by this call: hash -> {id, number of its queue, ...}
local sent_tasks, is_sent = {}, {}
local sent, dealt, refusal = 0, 0, { 'done' }
local waiting = tonumber(redis.call('HGET', record, 'waiting'))
while arg <= #ARGV do
  local head, id = ARGV[arg], ARGV[arg + 1]
  local line_index, number, rank, settles, ignores_result, expires = struct.unpack('<HBBBBd', head)
  local line, tasks = lines[line_index], record .. ':' .. number
  local task_costs = { struct.unpack(line.cost_format, head, 15) }
  task_costs[#task_costs] = MILLION -- of the fan-out, instead of the position where the reading ended
  if not is_sent[id] and redis.call('HEXISTS', tasks, id) == 0 then
    local reason, in_line = refusal_of(line, task_costs, waiting), is_in_line(line, id)
    if reason then
      refusal = reason
      break
    elseif in_line == false then
      add_task(line, id, rank, settles, expires, ARGV[arg + 2], task_costs)
    end
    if in_line ~= nil then
      sent_tasks[tasks] = sent_tasks[tasks] or {}
      table.insert(sent_tasks[tasks], id)
      table.insert(sent_tasks[tasks], (ignores_result == 1 and '-' or '') .. numbers[line.descriptor.queue])
      is_sent[id], sent, waiting = true, sent + 1, waiting + 1
    end
  end
  dealt, arg = dealt + 1, arg + 3
end

write_others()
for tasks, values in pairs(sent_tasks) do
  call_with('HSET', tasks, values)
end
redis.call('HINCRBY', record, 'sent', sent)
if ARGV[4] == '1' and refusal[1] == 'done' then
  redis.call('HSET', record, 'closed', '1')
elseif sent > 0 then
  redis.call('HDEL', record, 'closed')
end
if waiting == 0 then
  change_fan_out_waiting(record, 0)
end
local status = table.remove(refusal, 1)
return { status, dealt, sent, waiting, unpack(refusal) }
