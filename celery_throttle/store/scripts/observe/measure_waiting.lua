-- measure_waiting.lua: measures the lines that wait at some limits, some keys of each at a time.
-- KEYS  per limit: set of keys `waiting-lists` of its name; or for one key its `waiting-lists`
-- ARGV  from 2 on, per limit: cursor: '0' at first, then the one that the last call replied; '' for one key
-- Reply for the first limits, the others are left to the next call: {cursor of the next call, '0' at the end; lines;
--        1 if there were too many lines to look at each, else 0;
--        {key `due` of a queue, tasks of its lines, the longest wait (us) of one of them, {up to 20 of its lines}, ...}}

-- The lines of one limit that a call looks at, those of all limits after which it ends, and the lines that are listed.
local MOST_LINES, ENOUGH_LINES, LINES_OF_QUEUE = 2000, 100, 20

-- Add the lines of a waiting list to a row: those of each queue by the key `due` of the queue.
local function measure_list(row, waiting, due)
  local queue = row.by_queue[due]
  if not queue then
    queue = { due = due, tasks = 0, oldest = 0, lines = {} }
    row.by_queue[due], row.queues[#row.queues + 1] = queue, queue
  end
  local found = redis.call('ZRANGE', waiting, 0, MOST_LINES - row.lines - 1)
  row.lines = row.lines + #found
  if #found < redis.call('ZCARD', waiting) then
    row.is_truncated = 1
  end
  for _, line in ipairs(found) do
    queue.tasks = queue.tasks + redis.call('ZCARD', line)
    queue.oldest = math.max(queue.oldest, oldest_wait(line) or 0)
    if #queue.lines < LINES_OF_QUEUE then
      queue.lines[#queue.lines + 1] = line
    end
  end
end

local function measure_limit(key, cursor)
  local row, all = { lines = 0, is_truncated = 0, queues = {}, by_queue = {} }, { key }
  row.cursor = '0'
  if cursor ~= '' then
    row.cursor, all = unpack(redis.call('SSCAN', key, cursor, 'COUNT', 100))
  end
  for _, lists in ipairs(all) do
    local found = redis.call('HGETALL', lists)
    for i = 1, #found, 2 do
      if row.lines < MOST_LINES then
        measure_list(row, found[i], cmsgpack.unpack(found[i + 1])[1])
      else
        row.is_truncated = 1
      end
    end
  end
  return row
end

local reply, lines = {}, 0
for i = 1, #KEYS do
  local row, found = measure_limit(KEYS[i], ARGV[i + 1]), {}
  for _, queue in ipairs(row.queues) do
    found[#found + 1], found[#found + 2] = queue.due, queue.tasks
    found[#found + 1], found[#found + 2] = queue.oldest, queue.lines
  end
  reply[i], lines = { row.cursor, row.lines, row.is_truncated, found }, lines + row.lines
  if lines >= ENOUGH_LINES then
    break
  end
end
return reply
