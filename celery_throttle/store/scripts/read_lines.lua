-- read_lines.lua: reads through the lines of one queue, some at a time: what waits in each.
-- uses: clock, fair_queue
--
-- KEYS  1-4  the queue's lines, messages, due, asks
-- ARGV  1    now (us), or '' for the server's clock
--       2    cursor: '0' at first, then what the last call replied
-- Reply {cursor to go on with, '0' at the end; for how long (us) a limit has had room for tasks that
--        nobody takes; {line, fan-out or '', weight, {name, field, cost, ...}, {rank, tasks, ...}}, ...}
--       Costs are in millionths of a unit: what some tasks of the line cost on average. Of a line without
--       an about-table nothing is said.

local now = clock(ARGV[1])
local messages = KEYS[2]
local SAMPLES = 300

-- How many tasks of each rank. All but few lines have one.
local function ranks_of(line, count)
  local found, from = {}, '-inf'
  while count > 0 do
    local score = redis.call('ZRANGE', line, from, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    if not score then
      break
    end
    local rank = math.floor(tonumber(score) / RANK)
    from = whole((rank + 1) * RANK)
    local own = redis.call('ZCOUNT', line, score, '(' .. from)
    found[#found + 1], found[#found + 2], count = rank, own, count - own
  end
  return found
end

-- Only the costs of a packed task, not its message: what comes first in it is its line.
local function costs_of(line, place)
  local id = redis.call('ZRANGE', line, whole(place), whole(place))[1]
  local packed = id and redis.call('HGET', messages, id)
  return packed and select(3, cmsgpack.unpack_limit(packed, 2, 1))
end

-- The mean of tasks that stand as far as can be from each other, the first and the last included.
local function mean_costs(line, count, samples, size)
  local sums, seen = {}, 0
  for i = 1, samples do
    local place = samples == 1 and 0 or math.floor((i - 1) * (count - 1) / (samples - 1))
    local costs = costs_of(line, place)
    if costs then
      seen = seen + 1
      for limit = 1, size do
        sums[limit] = (sums[limit] or 0) + costs[limit]
      end
    end
  end
  for limit = 1, seen > 0 and size or 0 do
    sums[limit] = sums[limit] / seen
  end
  return sums
end

local found = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 100)
local samples = math.max(3, math.min(32, math.floor(SAMPLES / math.max(1, #found[2] / 2))))
local due = tonumber(redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or now)
local reply = { found[1], math.max(0, now - due) }
for i = 1, #found[2], 2 do
  local line = found[2][i]
  local _, about = unpack_line(found[2][i + 1])
  local count = redis.call('ZCARD', line)
  if count > 0 and about.limits[1] then
    local costs, needs = mean_costs(line, count, math.min(samples, count), #about.limits), {}
    for place, names in ipairs(about.limits) do
      needs[#needs + 1], needs[#needs + 2], needs[#needs + 3] = names[1], names[2], costs[place] or MILLION
    end
    reply[#reply + 1] = { line, about.fan_out or '', about.weight or 1, needs, ranks_of(line, count) }
  end
end
return reply
