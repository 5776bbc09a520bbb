-- discard.lua: discards the tasks that wait in the lines of a queue, some at a time.
-- KEYS  1-4  the queue's lines, messages, due, polls
--       5    only to discard them if no worker consumes the queue: one of the zsets of `heartbeat.lua`. When
--            nothing is left, the queue is removed from it.
--       last head of the totals, see `counters.lua`
-- ARGV  2    how many tasks at most
--       then with KEYS[5]: for how long (us) a worker consumes a queue after it has reported that
-- Reply {how many were discarded, how many are left; -1 if nothing was done}
-- Tasks are taken from the ends of lines, so that none comes to the head of a line in between. Those of a fan-out end
-- as revoked. Results are left as they are, as a broker leaves them.

local most = tonumber(ARGV[2])
local queue, consumed = { KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, #KEYS > 5 and KEYS[5]
local reported = consumed and redis.call('ZSCORE', consumed, queue[LINES])
if consumed and not (reported and tonumber(reported) <= now - tonumber(ARGV[3])) then
  return { 0, -1 }
end

-- Discard up to `room` tasks of a line. Returns how many.
local function discard_tasks(waiting, line, room)
  local ids = redis.call('ZRANGE', line, format_integer(-room), -1)
  local limit_index, descriptor = unpack_descriptor(redis.call('HGET', queue[LINES], line) or '')
  local key_caps
  if descriptor then
    for _, id in ipairs(descriptor.fan_out and ids or {}) do
      record_fan_out_outcome(descriptor.fan_out, id, 'revoked')
    end
    remove_tasks(line, descriptor, limit_index, ids)
    increase_totals(descriptor, 'discarded', #ids)
  else -- the server has lost it, or it cannot be read
    local packed = ids[1] and redis.call('HGET', queue[MESSAGES], ids[1])
    key_caps = packed and (unpack_row(packed) or {})[KEY_CAPS]
    call_with('HDEL', queue[MESSAGES], ids)
    call_with('ZREM', line, ids)
  end
  if redis.call('EXISTS', line) == 0 then
    redis.call('ZREM', waiting, line)
    if descriptor then
      drop_empty_list(descriptor.limits[limit_index], queue)
    else
      end_line(line, { queue = queue, key_caps = key_caps })
    end
  end
  return #ids
end

local count = redis.call('HLEN', queue[MESSAGES])
work_without_memory()
local room = most
while room > 0 do
  local waiting = redis.call('ZRANGE', queue[DUE], 0, 0)[1]
  local line = waiting and redis.call('ZRANGE', waiting, 0, 0)[1]
  if line then
    room = room - math.max(1, discard_tasks(waiting, line, room))
  elseif waiting then
    redis.call('ZREM', queue[DUE], waiting)
    room = room - 1
  elseif redis.call('EXISTS', queue[LINES]) == 1 then
    repair()(queue)
    break
  else
    -- Rows whose lines the server has lost.
    local _, rows = scan_hash(queue[MESSAGES], '0', most)
    local ids = {}
    for i = 1, math.min(#rows, 2 * most), 2 do
      ids[#ids + 1] = rows[i]
    end
    call_with('HDEL', queue[MESSAGES], ids)
    break
  end
end

local left = redis.call('HLEN', queue[MESSAGES])
local discarded = count - left
if left == 0 and redis.call('EXISTS', queue[LINES], queue[DUE]) > 0 then
  left = 1
elseif left == 0 and consumed then
  redis.call('ZREM', consumed, queue[LINES])
end
return { discarded, left }
