-- read_lines.lua: reads the lines of one queue, some at a time.
-- KEYS  1-4  the queue's lines, messages, due, polls
--       5    zset: live workers
--       6    zset `consumed`, see `heartbeat.lua`
-- ARGV  2    for how long (us) a queue counts as consumed after a worker has reported that
--       3    cursor: '0' at first, then the one that the last call replied
--       then the lines to read, 20 at most; without them, all lines are read
-- Reply {cursor of the next call, '0' at the end; for how long (us) a limit has had room for tasks that nobody takes;
--        1 if a live worker consumes the queue, as far as workers have reported it, else 0;
--        {line, fan-out or '', weight, {name, field, cost, ...}, {rank, tasks, ...}}, ...}
--       A cost is the mean of some tasks of the line, in millionths. A line without a descriptor is left out,
--       and so is a surplus line: of its tasks, none is to run.

local lines, messages, due = KEYS[LINES], KEYS[MESSAGES], KEYS[DUE]

-- How many lines one call reads, and how many tasks for the costs of all of them. A call that reads more delays tasks by
-- milliseconds.
local MOST_LINES, SAMPLES = 20, 60

local bytes = 0 -- of the tasks read

-- The number of tasks of each rank. Most lines have one rank.
local function read_ranks(line, count)
  local ranks, from = {}, '-inf'
  while count > 0 do
    local score = redis.call('ZRANGE', line, from, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    if not score then
      break
    end
    local rank = rank_of(tonumber(score))
    from = format_integer((rank + 1) * RANK_SPAN)
    local tasks = redis.call('ZCOUNT', line, score, '(' .. from)
    ranks[#ranks + 1], ranks[#ranks + 2], count = rank, tasks, count - tasks
  end
  return ranks
end

-- The mean costs of samples at even distances, the first and the last task included. If the tasks are large, there are
-- fewer samples, but one at least.
local function mean_costs(line, count, samples, limits)
  local sums, found, i = {}, 0, 0
  while i < samples and (i == 0 or bytes < BATCH_BYTES) do
    local position = samples == 1 and 0 or math.floor(i * (count - 1) / (samples - 1))
    local costs, size = read_costs(messages, redis.call('ZRANGE', line, position, position)[1])
    i, bytes = i + 1, bytes + size
    if i == 1 and size > 0 then
      samples = math.min(samples, math.max(1, math.floor(BATCH_BYTES / size)))
    end
    if costs then
      found = found + 1
      for n = 1, limits do
        sums[n] = (sums[n] or 0) + costs[n]
      end
    end
  end
  for n = 1, found > 0 and limits or 0 do
    sums[n] = sums[n] / found
  end
  return sums
end

local most_lines = math.max(1, math.min(MOST_LINES, redis.call('HLEN', lines)))
local samples = math.max(3, math.min(32, math.floor(SAMPLES / most_lines)))
local due_since = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or now)
local reported = redis.call('ZSCORE', KEYS[6], lines)
local newest = redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]
local has_workers = newest and tonumber(newest) > now
-- Workers report a queue that has just got its first task within some seconds.
local is_consumed = has_workers and (not reported or tonumber(reported) > now - ARGV[2])
local cursor, reply = ARGV[3], { '0', math.max(0, now - due_since), is_consumed and 1 or 0 }

local function add_line(line, packed)
  local limit_index, descriptor = unpack_descriptor(packed)
  local limits, count = (descriptor or {}).limits, redis.call('ZCARD', line)
  if limits and count > 0 and limit_index > 0 then
    local costs, requirements = mean_costs(line, count, math.min(samples, count), #limits), {}
    for n, limit_keys in ipairs(limits) do
      requirements[#requirements + 1] = limit_keys[NAME]
      requirements[#requirements + 1] = limit_keys[FIELD]
      requirements[#requirements + 1] = costs[n] or MILLION
    end
    reply[#reply + 1] = { line, descriptor.fan_out or '', descriptor.weight or 1, requirements,
                          read_ranks(line, count) }
  end
end

if ARGV[4] then
  for i = 4, #ARGV do
    local packed = redis.call('HGET', lines, ARGV[i])
    if packed then
      add_line(ARGV[i], packed)
    end
  end
  return reply
end
for _ = 1, MOST_LINES do
  local step = redis.call('HSCAN', lines, cursor, 'COUNT', 1)
  cursor = step[1]
  for i = 1, #step[2], 2 do
    add_line(step[2][i], step[2][i + 1])
  end
  if cursor == '0' or bytes >= BATCH_BYTES then
    break
  end
end
reply[1] = cursor
return reply
