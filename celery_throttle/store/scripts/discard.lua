-- discard.lua: tasks that wait in the lines of a queue are taken out of them for good, some at a time.
-- uses: fair_queue, fan_out
-- uses rarely: repair
--
-- KEYS  1-4  the queue's lines, messages, due, asks
--       5    if it is only to be done while no worker consumes the queue: zset: key `lines` of a queue ->
--            when (us) a worker last said that it consumes it. When nothing is left, the queue is taken out.
-- ARGV  1    now (us), or '' for the server's clock
--       2    how many tasks at most; 0 only counts
--       then with KEYS[5]: how long (us) a worker is taken to consume what it said; if it only counts, how long
--            (us) the queue is taken to be consumed then, so that not all workers count
-- Reply {how many were discarded, how many are left; -1: nothing was done}
-- Tasks are taken from the ends of lines, so that none comes to stand first in between. Those of a fan-out
-- end as revoked. Results are left as they are, as a broker leaves them.

local now, most = clock(ARGV[1]), tonumber(ARGV[2])
local queue, consumed = { KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, KEYS[5]
local said = consumed and redis.call('ZSCORE', consumed, queue[LINES])
if consumed and not (said and tonumber(said) <= now - tonumber(ARGV[3])) then
  return { 0, -1 }
end

-- Takes some tasks out of a line, which may be left empty. Returns how many there were, and how many of them
-- had a message.
local function discard_some(waiting, line, room)
  local ids, gone = redis.call('ZRANGE', line, whole(-room), -1), 0
  local packed, at, about = redis.call('HGET', queue[LINES], line), nil, nil
  if packed then
    at, about = unpack_line(packed)
  end
  for _, id in ipairs(about and about.fan_out and ids or {}) do
    fan_out_ended(about.fan_out, id, 'revoked')
  end
  if #ids > 0 then
    gone = redis.call('HDEL', queue[MESSAGES], unpack(ids))
    redis.call('ZREM', line, unpack(ids))
  end
  if about and #ids > 0 then
    count(about.limits[at], -#ids)
    if about.fan_out then
      fan_out_waits(about.fan_out, -#ids, ARGV[1])
    end
  end
  if redis.call('EXISTS', line) == 0 then
    redis.call('ZREM', waiting, line)
    if about then
      forget(line, about, now)
      tidy(about.limits[at], queue)
    end
  end
  return #ids, gone
end

if most > 0 then
  -- A server that is out of memory carries out a script whose first write takes something away.
  redis.call('ZREM', queue[DUE], '')
end
local discarded, room = 0, most
while room > 0 do
  local waiting = redis.call('ZRANGE', queue[DUE], 0, 0)[1]
  local line = waiting and redis.call('ZRANGE', waiting, 0, 0)[1]
  if line then
    local tasks, gone = discard_some(waiting, line, room)
    discarded, room = discarded + gone, room - math.max(1, tasks)
  elseif waiting then
    redis.call('ZREM', queue[DUE], waiting)
    room = room - 1
  elseif redis.call('EXISTS', queue[LINES]) == 1 then
    repair()(queue, now)
    break
  else
    -- Messages of lines that the server has lost.
    local found, ids = redis.call('HSCAN', queue[MESSAGES], '0', 'COUNT', most)[2], {}
    for i = 1, math.min(#found, 2 * most), 2 do
      ids[#ids + 1] = found[i]
    end
    discarded = discarded + (#ids > 0 and redis.call('HDEL', queue[MESSAGES], unpack(ids)) or 0)
    break
  end
end

local left = redis.call('HLEN', queue[MESSAGES])
if left == 0 and redis.call('EXISTS', queue[LINES], queue[DUE]) > 0 then
  left = 1
elseif left == 0 and consumed then
  redis.call('ZREM', consumed, queue[LINES])
end
if left > 0 and consumed and most == 0 then
  redis.call('ZADD', consumed, whole(now - tonumber(ARGV[3]) + tonumber(ARGV[4])), queue[LINES])
end
return { discarded, left }
