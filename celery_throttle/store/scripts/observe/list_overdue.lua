-- list_overdue.lua: lists the lines of a queue whose limit has room, but nobody takes their tasks; some at a time.
-- KEYS  1-4  the queue's lines, messages, due, polls
-- ARGV  2    for how long (us) the limit at which a line waits must have had room
--       3    how many waiting lists to pass over: 0 at first, then what the last call replied
-- Reply {waiting lists to pass over by the next call, -1 at the end;
--        {tasks, index of the limit at which the line waits, name, field, cost of its first task (millionths), ...}, ...}
--       Of each waiting list only the first lines are listed. A line without a descriptor is left out,
--       and so is a surplus line: of its tasks, none is to run.

-- How many waiting lists and lines one call reads, and how many lines of one list. A call that reads more delays tasks.
local MOST_LISTS, MOST_LINES, LINES_OF_LIST = 20, 20, 20

local first, reply, bytes = tonumber(ARGV[3]), {}, 0

local function add_line(line)
  local limit_index, descriptor = unpack_descriptor(redis.call('HGET', KEYS[LINES], line) or '')
  local tasks = redis.call('ZCARD', line)
  if not descriptor or tasks == 0 then
    return
  end
  local costs, size = read_costs(KEYS[MESSAGES], redis.call('ZRANGE', line, 0, 0)[1])
  local row = { tasks, limit_index }
  bytes = bytes + size
  for i, limit_keys in ipairs(descriptor.limits) do
    row[#row + 1], row[#row + 2], row[#row + 3] = limit_keys[NAME], limit_keys[FIELD], costs and costs[i] or MILLION
  end
  if limit_index > 0 then
    reply[#reply + 1] = row
  end
end

local due_before = format_integer(now - ARGV[2])
local found = redis.call('ZRANGE', KEYS[DUE], '-inf', due_before, 'BYSCORE', 'LIMIT', first, MOST_LISTS)
local lists = 0
while lists < #found and #reply < MOST_LINES and bytes < BATCH_BYTES do
  lists = lists + 1
  for _, line in ipairs(redis.call('ZRANGE', found[lists], 0, LINES_OF_LIST - 1)) do
    if bytes < BATCH_BYTES then
      add_line(line)
    end
  end
end
return { #found > 0 and first + lists or -1, unpack(reply) }
