-- measure_limits.lua: measures the slots in use and the waiting tasks of some limits, by those keys of each limit with
-- the most waiting tasks: the work does not grow with the number of keys.
-- KEYS  1   head of the keys `waiting-lists`
--       2   head of the keys `entries`
--       3   head of the totals
-- ARGV  2   how many lines of each limit to look at
--       then per limit: its name; '1' if it has slots, else ''
-- Reply per limit {slots in use without a key and by these keys; most tasks that wait at one key; the longest wait (us)
--        of one of their tasks, -1 if none waits; when (us from now) one of them is next due, -1 if nobody knows; {key
--        `due` of a queue with tasks, ...}}

local MOST_LINES, FROM = tonumber(ARGV[2]), '(' .. format_integer(now)

local function measure_list(row, waiting, due)
  local time = redis.call('ZSCORE', due, waiting)
  if time then
    row.next_due = math.min(row.next_due, math.max(0, time - now))
  end
  for _, line in ipairs(redis.call('ZRANGE', waiting, 0, MOST_LINES - row.lines - 1)) do
    row.lines, row.oldest = row.lines + 1, math.max(row.oldest, oldest_wait(line) or 0)
  end
end

local due_of = {} -- by what is stored of a queue, as all lists of a queue have the same

local function measure_field(row, field, is_listed)
  if row.has_slots then
    row.slots = row.slots + redis.call('ZCOUNT', KEYS[2] .. field, FROM, '+inf')
  end
  local found = redis.call('HGETALL', KEYS[1] .. field)
  for i = 1, #found, 2 do
    local queue = found[i + 1]
    local due = due_of[queue] or cmsgpack.unpack(queue)[1]
    due_of[queue] = due
    if not is_listed[due] then
      is_listed[due], row.queues[#row.queues + 1] = true, due
    end
    if row.lines < MOST_LINES then
      measure_list(row, found[i], due)
    end
  end
end

local reply = {}
for i = 3, #ARGV, 2 do
  local name, is_listed = ARGV[i], {}
  local row = { has_slots = ARGV[i + 1] ~= '', slots = 0, tasks_of_key = 0, lines = 0, oldest = -1, next_due = math.huge, queues = {} }
  measure_field(row, name, is_listed)
  local keys = redis.call('ZRANGE', KEYS[3] .. name .. '/keys', 0, MOST_LINES, 'REV', 'WITHSCORES')
  for n = 1, #keys, 2 do
    if keys[n] ~= '' then -- that has the sum of all keys
      row.tasks_of_key = math.max(row.tasks_of_key, tonumber(keys[n + 1]))
      measure_field(row, name .. ':' .. keys[n], is_listed)
    end
  end
  local next_due = row.next_due < math.huge and row.next_due or -1
  reply[#reply + 1] = { row.slots, row.tasks_of_key, row.oldest, next_due, row.queues }
end
return reply
