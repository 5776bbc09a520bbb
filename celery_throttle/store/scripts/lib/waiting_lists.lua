-- waiting_lists.lua: the lines that wait at one limit and key, their order, and when they are served.
-- The order is weighted fair queueing among the lines of one rank.
-- Each dispatch from a line advances its virtual time by STRIDE / weight, and the line whose virtual time is least is
-- served next. In a score the rank is followed by 28 bits of virtual time and 17 bits that order the lines of one
-- virtual time by their arrival. Virtual time wraps around to 0. Lines of one rank are never farther apart than one
-- STRIDE, so it is known which of them are ahead.
-- KEYS  last  head of the totals, see `counters.lua`
-- `limit_keys` are the keys of one limit in a descriptor, see `line_data.lua`.

-- The distance between the scores of two virtual times, and the virtual time at which it wraps around. STRIDE can be
-- divided by most weights.
local TIME_SPAN, TIME_MODULUS, STRIDE = 2 ^ 17, 2 ^ 28, 110880

-- Lines this close to the wrap-around may be followed by lines beyond it.
local WRAP_MARGIN = 2 * STRIDE

local function virtual_time_of(score)
  return math.floor(score % RANK_SPAN / TIME_SPAN)
end

local function stride_of(descriptor)
  return math.floor(STRIDE / (descriptor.weight or 1))
end

-- The rank of a line: of its first task. Nil if it has none.
local function rank_of_line(line)
  return rank_of(redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')[2])
end

-- The next line of one rank as {line, score}, given the one with the lowest score: if that may have wrapped around,
-- lines with the highest virtual times come before it.
local function next_of_rank(waiting, lowest)
  if lowest[2] and virtual_time_of(lowest[2]) < WRAP_MARGIN then
    local stop = (rank_of(lowest[2]) + 1) * RANK_SPAN
    local from = stop - WRAP_MARGIN * TIME_SPAN
    local before = redis.call('ZRANGE', waiting, from, stop - 1,
                              'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    return before[1] and before or lowest
  end
  return lowest
end

-- Put a line into a waiting list, behind the lines of its rank and virtual time.
local function put_line(waiting, line, rank, virtual_time)
  local from = rank * RANK_SPAN + virtual_time % TIME_MODULUS * TIME_SPAN
  local last = from + TIME_SPAN - 1
  local found = redis.call('ZRANGE', waiting, last, from,
                           'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  redis.call('ZADD', waiting, found and math.min(found + 1, last) or from, line)
end

-- Enter a line into a waiting list, or under another rank of it. It starts one stride behind the next line, as if it
-- had just been served: so no line gains by leaving and entering again.
local function enter_list(waiting, line, descriptor)
  local rank = rank_of_line(line) or 0
  local lowest = redis.call('ZRANGE', waiting, rank * RANK_SPAN,
                            (rank + 1) * RANK_SPAN - 1, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local first = next_of_rank(waiting, lowest)[2]
  put_line(waiting, line, rank, first and virtual_time_of(first) + stride_of(descriptor) or 0)
end

-- Move a line to the rank of its first task, which may be another than before.
local function update_rank(waiting, line, descriptor) -- rare
  local rank = rank_of(redis.call('ZSCORE', waiting, line))
  if rank and rank ~= rank_of_line(line) then
    enter_list(waiting, line, descriptor)
  end
end

-- Change the backlog of one key among those of its name: a zset of the keys with waiting tasks -> how many wait; the
-- member '' has their sum. No change stands for minus all. Fan-outs count their waiting tasks in their records.
local function change_key_backlog(limit_keys, change)
  local name, field = limit_keys[NAME], limit_keys[FIELD]
  if name == field or name == FAN_OUT_NAME then
    return
  end
  local backlogs, key = KEYS[#KEYS] .. name .. '/keys', string.sub(field, #name + 2)
  change = change or -(redis.call('ZSCORE', backlogs, key) or 0)
  if change == 0 then
    return
  end
  redis.call('ZINCRBY', backlogs, change, '')
  if tonumber(redis.call('ZINCRBY', backlogs, change, key)) <= 0 then
    redis.call('ZREM', backlogs, key)
    if redis.call('ZCARD', backlogs) == 1 then
      redis.call('DEL', backlogs)
    end
  end
end

local function change_backlog(limit_keys, change)
  if change ~= 0 and limit_keys[BACKLOG] then
    if redis.call('INCRBY', limit_keys[BACKLOG], change) <= 0 then
      redis.call('DEL', limit_keys[BACKLOG])
    end
    change_key_backlog(limit_keys, change)
  end
end

-- Register a waiting list with its limit, so that a change of the limit finds it. Returns whether it was not
-- registered before.
local function register_list(limit_keys, queue)
  redis.call('SADD', limit_keys[WAITING_LIST_INDEX], limit_keys[WAITING_LISTS])
  local queue_keys = cmsgpack.pack({ queue[DUE], queue[POLLS] })
  return redis.call('HSET', limit_keys[WAITING_LISTS], limit_keys[WAITING], queue_keys) == 1
end

-- The due time after a wait (us). A negative wait is a cost that never passes: the task is handed out at
-- once.
local function due_time(wait)
  return now + math.max(0, wait)
end

-- Let a waiting list be due after a wait (us), unless it is due before.
local function bring_forward(limit_keys, queue, wait)
  redis.call('ZADD', queue[DUE], 'XX', 'LT', due_time(wait), limit_keys[WAITING])
end

-- Drop a waiting list if it is empty, which the caller may know. Call this after a line has left it.
local function drop_empty_list(limit_keys, queue, is_empty)
  if is_empty or redis.call('EXISTS', limit_keys[WAITING]) == 0 then
    redis.call('ZREM', queue[DUE], limit_keys[WAITING])
    if limit_keys[WAITING_LISTS] then
      redis.call('HDEL', limit_keys[WAITING_LISTS], limit_keys[WAITING])
      if redis.call('EXISTS', limit_keys[WAITING_LISTS]) == 0 then
        redis.call('SREM', limit_keys[WAITING_LIST_INDEX], limit_keys[WAITING_LISTS])
        redis.call('DEL', limit_keys[BACKLOG])
        change_key_backlog(limit_keys)
      end
    end
  end
end

-- Wake up to two workers that would otherwise poll after `due` (us). Workers whose poll lies in the past are busy or
-- gone, and so are those that do not listen. `polls` is that key of a queue.
local function wake(polls, due)
  local next_polls, left = redis.call('ZRANGE', polls, now, '+inf', 'BYSCORE', 'LIMIT', 0, 8, 'WITHSCORES'), 2
  for i = 1, #next_polls, 2 do
    if left > 0 and (tonumber(next_polls[i + 1]) <= due or redis.call('PUBLISH', next_polls[i], '') > 0) then
      left = left - 1
    end
  end
end

-- Make all waiting lists of a limit and key due, after it has changed; `lists` is the hash of them. Wakes workers,
-- unless the table `wake_later` is given: that gets {due, polls} of each queue.
local function make_due(lists, wake_later)
  local found = redis.call('HGETALL', lists)
  for i = 1, #found, 2 do
    local queue_keys = cmsgpack.unpack(found[i + 1])
    redis.call('ZADD', queue_keys[1], 'XX', now, found[i])
    if wake_later then
      wake_later[#wake_later + 1] = queue_keys
    else
      wake(queue_keys[2], now)
    end
  end
end

-- Make the lines due that wait at a limit, some of its keys at a time. `index` is the set of the keys `waiting-lists` of
-- its name. Returns the cursor of the next step; '0' at the end.
local function make_name_due(index, cursor)
  local found = redis.call('SSCAN', index, cursor, 'COUNT', 500)
  for _, lists in ipairs(found[2]) do
    make_due(lists)
  end
  return found[1]
end

-- Release a slot if the holder has it; `wake_later` as in `make_due`. It is released last: if the script fails before
-- that, a repeated call makes the waiting lines due, too.
local function release_slot(entries, waits, holder, wake_later) -- rare
  if redis.call('ZSCORE', entries, holder) then
    make_due(waits, wake_later)
    redis.call('ZREM', entries, holder)
  end
end

-- Release the slots of a claim; `id` is that of its task.
local function release_slots(descriptor, worker, token, id, wake_later) -- rare
  for _, limit_keys in ipairs(descriptor.limits) do
    release_slot(limit_keys[ENTRIES], limit_keys[WAITING_LISTS], holder_of(worker, token, id), wake_later)
  end
end
