-- measure_waiting.lua: measures the lines that wait at a limit, some of its keys at a time.
-- KEYS  1   set: keys `waiting-lists` of the limit's name; or for one key its `waiting-lists`
-- ARGV  2   cursor: '0' at first, then the one that the last call replied; '' for one key
-- Reply {cursor of the next call, '0' at the end; lines; '1' if there were too many lines to look at each;
--        {key `due` of a queue, tasks of its lines, the longest wait (us) of one of them, {up to 20 of its lines}, ...}}

local MOST_LINES, LINES_OF_QUEUE = 2000, 20

local by_queue, queues, lines, is_truncated = {}, {}, 0, 0

local function measure_list(waiting, due)
  local queue = by_queue[due]
  if not queue then
    queue = { tasks = 0, oldest = 0, lines = {} }
    by_queue[due], queues[#queues + 1] = queue, due
  end
  local found = redis.call('ZRANGE', waiting, 0, MOST_LINES - lines - 1)
  lines = lines + #found
  if #found < redis.call('ZCARD', waiting) then
    is_truncated = 1
  end
  for _, line in ipairs(found) do
    queue.tasks = queue.tasks + redis.call('ZCARD', line)
    queue.oldest = math.max(queue.oldest, oldest_wait(line) or 0)
    if #queue.lines < LINES_OF_QUEUE then
      queue.lines[#queue.lines + 1] = line
    end
  end
end

local cursor, all = '0', { KEYS[1] }
if ARGV[2] ~= '' then
  cursor, all = unpack(redis.call('SSCAN', KEYS[1], ARGV[2], 'COUNT', 100))
end
for _, key in ipairs(all) do
  local found = redis.call('HGETALL', key)
  for i = 1, #found, 2 do
    if lines < MOST_LINES then
      measure_list(found[i], cmsgpack.unpack(found[i + 1])[1])
    else
      is_truncated = 1
    end
  end
end
local reply = {}
for _, due in ipairs(queues) do
  reply[#reply + 1], reply[#reply + 2] = due, by_queue[due].tasks
  reply[#reply + 1], reply[#reply + 2] = by_queue[due].oldest, by_queue[due].lines
end
return { cursor, lines, is_truncated, reply }
