-- enlist_tasks.lua: adds many tasks to lines: the first of each line joins as any task does, the others are only
-- counted.
-- uses: decision, task_score, task_row, join_line, wake, bulk_commands, counters
-- A line of `enlist.lua` is a table:
--   name            the line
--   descriptor      see `line_data.lua`
--   requirements    of its tasks
--   is_known        whether it holds tasks
--   first_rank      the lowest rank added by this call; nil before the first task
--   last_scores     rank -> score of the last task of that rank added by this call
--   last_positions  rank -> its position
--   joined          how many tasks this call has added; nil before the first
--   members, rows   {score, id, ...} and {id, packed row, ...} of the tasks that are not written yet

-- Write a task that comes first in its line.
local function join_first(line, id, rank, score, row, costs)
  local queue = line.descriptor.queue
  for i, requirement in ipairs(line.requirements) do
    for _, limit in ipairs(requirement.limits) do
      limit.cost = costs[i]
    end
  end
  local wait, bottleneck = decide(line.requirements, true)
  local earliest = redis.call('ZRANGE', queue[DUE], 0, 0, 'WITHSCORES')[2]
  join_line(line.name, line.descriptor, id, score, row, wait, bottleneck)
  line.is_known, line.first_rank = true, rank
  if not earliest or now + wait < tonumber(earliest) then
    wake(queue[POLLS], now + wait)
  end
end

-- Add a task to its line. Those behind the first are written by `write_others`.
local function add_task(line, id, rank, expires, message, costs)
  local last = line.last_scores[rank]
  local score = last and last + 1 or next_task_score(line.name, rank)
  -- Tasks of lower ranks that are added by this call, and not written yet, are not counted.
  local position = last and line.last_positions[rank] + 1
    or redis.call('ZCOUNT', line.name, '-inf', format_integer(score)) + 1
  local row = pack_row(line.name, costs, expires, message, score, line.descriptor.key_caps, position)
  if not line.first_rank or rank < line.first_rank then
    join_first(line, id, rank, score, row, costs)
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

local function write_others(record, lines)
  local all = 0
  for _, line in ipairs(lines) do
    local queue, count = line.descriptor.queue, #line.members / 2
    if count > 0 then
      call_with('ZADD', line.name, line.members)
      local found = redis.call('HGET', queue[LINES], line.name)
      if found then
        local limit_index, descriptor = unpack_descriptor(found)
        change_backlog(descriptor.limits[limit_index], count)
      end
      call_with('HSET', queue[MESSAGES], line.rows)
    end
    all = all + count
    if line.joined then
      increase_totals(line.descriptor, 'parked', line.joined)
    end
  end
  if all > 0 then
    change_fan_out_waiting(record, all)
  end
end
