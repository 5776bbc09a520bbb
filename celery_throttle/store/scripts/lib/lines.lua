-- lines.lua: lines of waiting tasks, and which limit each of them waits at.
-- uses: decide, fair_queue, fan_out, leases
-- uses rarely: repair
--
-- Library. A line holds the tasks of one queue that need one set of limits and keys. A line that
-- holds tasks waits at exactly one of its limits: the one that blocked it last. Names of keys are
-- made by `celery_throttle/store/keys.py` only; scripts pass them on and keep them with the line.
--
--   line               zset   task id -> score: priority, then age
--   <queue>.messages   hash   task id -> packed {line, costs, expires, parked, message, score,
--                             crowds}
--   <queue>.lines      hash   line -> index of the limit it waits at (one byte), packed about-table
--   <queue>.due        zset   waiting list -> when (us) its limit next has room for its first line
--   <queue>.asks       zset   channel of a worker -> when (us) it means to ask next; and WRITTEN of `leases.lua`
--   waiting            zset   lines of one queue that wait at one limit and key -> rank of its first task,
--                             then when it has its turn, see `fair_queue.lua`
--   backlog            string how many tasks wait at one limit and key, over all queues
--   waits              hash   waiting list -> packed {due, asks}, for one limit and key
--   waited             set    keys `waits` of one limit's name
--
-- The about-table: {queue = {lines, messages, due, asks}, limits = {{name, field, state, entries,
-- pause, key_pause, backlog, waiting, waits, waited}, ...}, crowds = {{crowd, entries}, ...}}. The last is
-- for limits with `max-keys`, and missing if none had that when the line began: then the line does not
-- count. `fan_out` is the record of the fan-out whose tasks wait in the line, missing if there is none.
-- `temporary` is the set of queues that the broker deletes with their last consumer, missing for others.
-- `weight` is that of the line when it was looked at last, and missing if that was 1. Of a line whose
-- about-table the server has lost only the waiting list is known; that is its limit 0, and `limits` holds
-- no other. What else may be missing is made anew, see `repair.lua`.
--
-- The server takes nothing back of a script that ends in the middle, as for a right that is missing. So a
-- task is written to where it goes before it is taken from where it was, and its message last of all that
-- makes it wait: whose message is there waits for sure. What such a script leaves of a line is put right
-- when the line is used again; backlogs are right again when nothing waits.

local function refs_of(about, costs)
  local refs = {}
  for i, names in ipairs(about.limits) do
    refs[i] = { state = names[3], entries = names[ENTRIES], cost = costs[i] or 0, paused = 0,
                has_key = names[1] ~= names[2] }
  end
  return refs
end

-- Another task of the line has other costs.
local function set_costs(refs, costs)
  for i = 1, #refs do
    local limits = refs[i].limits
    for place = 1, #limits do
      limits[place].cost = costs[i]
    end
  end
end

-- The weight of a line: the greatest of its refs. Nil for 1.
local function weight_of(refs)
  local weight = 1
  for _, ref in ipairs(refs) do
    weight = math.max(weight, ref.weight)
  end
  return weight > 1 and weight or nil
end

-- Looks at the refs of a line, see `look`, and at their weights, of which that of a key goes before that of
-- the name. A slot is for the holder, and first for `lease` (us).
local function look_at(definitions, about, refs, now, given, holder, lease)
  local fields, keys = {}, {}
  for i, names in ipairs(about.limits) do
    local weight = 2 * (#refs + i)
    fields[2 * i - 1], fields[2 * i] = names[2], names[1]
    fields[weight - 1], fields[weight] = 'weight ' .. names[2], 'weight ' .. names[1]
    keys[3 * i - 2], keys[3 * i - 1], keys[3 * i] = names[3], names[5], names[6]
  end
  local found = read_many('HMGET', definitions, fields, 1, #fields)
  local unknown = look(refs, found, 2, read_many('MGET', nil, keys, 1, #keys), 3, keys, 1, now, given)
  for i = 1, unknown and 0 or #refs do
    local weight = 2 * (#refs + i)
    refs[i].weight = tonumber(found[weight - 1] or found[weight] or 1)
    for _, limit in ipairs(refs[i].limits) do
      limit.holder, limit.lease = holder, lease
    end
  end
  about.weight = not unknown and weight_of(refs) or nil
  return unknown
end

-- Another task is the first to pass: what it waits for may come sooner, as it may cost less.
local function hurry(limit, queue, now, wait)
  redis.call('ZADD', queue[DUE], 'XX', 'LT', due_time(now, wait), limit[WAITING])
end

-- Lets the line wait at its limit `at`.
local function attach(line, about, at, now, wait)
  local limit, queue = about.limits[at], about.queue
  redis.call('HSET', queue[LINES], line, pack_line(at, about))
  count(limit, redis.call('ZCARD', line))
  enter(limit[WAITING], line, about)
  if redis.call('ZCARD', limit[WAITING]) == 1 then
    redis.call('ZADD', queue[DUE], due_time(now, wait), limit[WAITING])
    -- A list that could be found before has lost its other lines; one that alone is due, all others.
    local new = register(limit, queue)
    if not new then
      redis.call('DEL', limit[WAITING])
    end
    if not new or redis.call('ZCARD', queue[DUE]) == 1 and redis.call('HLEN', queue[LINES]) > 1 then
      repair()(queue, now)
    end
  elseif redis.call('ZRANK', limit[WAITING], line) == 0 then
    hurry(limit, queue, now, wait)
  end
end

-- Tasks wait no more, and another may be the first; `others`: whether there are any, if that is known. A line
-- that is left empty is gone from Redis but still in its waiting list: the caller takes it out, or gives it
-- the place of its first task.
local function leave(line, about, at, ids, now, others)
  local queue = about.queue
  call_with('HDEL', queue[MESSAGES], ids)
  call_with('ZREM', line, ids)
  count(about.limits[at], -#ids)
  if about.fan_out then
    fan_out_waits(about.fan_out, -#ids, ARGV[1])
  end
  if others == nil then
    others = redis.call('EXISTS', line) == 1
  end
  if not others then
    forget(line, about, now)
  end
end

-- A packed claim but for the task's id, score and what is kept of it: {line, about, id, score, packed}. What is
-- packed already is put in as it is.
local function claim_head(line, packed_about)
  return '\149' .. cmsgpack.pack(line) .. packed_about
end

-- Moves a waiting task into a worker's claims. Returns what the worker is told of it: {token, kind,
-- starts in (us), waited (us), message, task id}.
local function hand_out(claims, token, line, about, at, id, packed, kind, starts, now)
  local _, _, _, parked, message, score = unpack(cmsgpack.unpack(packed))
  local head = claim_head(line, cmsgpack.pack(about))
  redis.call('HSET', claims, token, head .. cmsgpack.pack(id, score, packed))
  leave(line, about, at, { id }, now)
  return { token, kind, starts, now - parked, message, id }
end

-- Puts a task into its line. Within a priority the order is by age; the clock may stand still or
-- step back, so a task is never put before the one that came last. A score fits a double exactly:
-- 8 bits of priority, 45 bits of time in units of 64 us.
local function score_of(line, rank, now)
  local from, to = rank * RANK, (rank + 1) * RANK - 1
  local last = redis.call('ZRANGE', line, whole(to), whole(from),
                          'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
  local score = from + math.floor(now / 64)
  return last[2] and math.max(score, tonumber(last[2]) + 1) or score
end

-- A line that is known and has no other task has lost these; one that has others and is not known, its
-- about-table: then it is in a waiting list already.
local function join(line, about, id, score, packed, now, wait, bound)
  local queue, known = about.queue, redis.call('HGET', about.queue[LINES], line)
  if about.temporary then
    redis.call('ZADD', about.temporary, whole(now), queue[LINES])
  end
  redis.call('ZADD', line, whole(score), id)
  local alone = redis.call('ZCARD', line) == 1
  if known then
    local at = string.byte(known, 1)
    local limit = about.limits[at] or select(2, unpack_line(known)).limits[at]
    count(limit, 1)
    if alone then
      repair()(queue, now, line)
    end
    if redis.call('ZRANK', line, id) == 0 then
      follow(limit[WAITING], line, about)
      hurry(limit, queue, now, wait)
    end
  elseif about.limits[1] then
    if alone then
      mark(about, 1, now)
    end
    for _, limit in ipairs(alone and {} or about.limits) do
      redis.call('ZREM', limit[WAITING], line)
      tidy(limit, queue)
    end
    attach(line, about, math.max(1, bound), now, wait)
  elseif alone then
    enter(about.limits[0][WAITING], line, about)
    redis.call('ZADD', queue[DUE], whole(now), about.limits[0][WAITING])
  end
  redis.call('HSET', queue[MESSAGES], id, packed)
  if about.fan_out then
    fan_out_waits(about.fan_out, 1, ARGV[1])
  end
end

-- A worker is known as long as it holds claims: so that these go back when its lease runs out,
-- however long nobody is there to see it, and so that nothing is left of a worker without any.
local function lease(workers, worker, claims, till, now)
  if redis.call('EXISTS', claims) == 1 then
    write_lease(workers, worker, till, now)
  else
    remove_lease(workers, worker)
  end
end

-- A worker has let go of claims: those that are left go on under the lease that it has.
local function end_lease(workers, worker, claims)
  if redis.call('EXISTS', claims) == 0 then
    remove_lease(workers, worker)
  end
end

-- Wakes up to two workers that would otherwise sleep past the moment `due`. Those whose next ask
-- lies in the past are busy or gone.
local function wake(queue, now, due)
  local early = redis.call('ZRANGE', queue[ASKS], whole(now), '+inf', 'BYSCORE',
                           'LIMIT', 0, 2, 'WITHSCORES')
  for i = 1, #early, 2 do
    if tonumber(early[i + 1]) > due then
      redis.call('PUBLISH', early[i], '')
    end
  end
end

-- Lets what waits at one limit and key be looked at again now: it may have room, or another limit.
-- Without `wake_for`, workers are woken; else the queues are put there, as {due, asks}.
local function look_again(waits, now, wake_for)
  local found = redis.call('HGETALL', waits)
  for i = 1, #found, 2 do
    local names = cmsgpack.unpack(found[i + 1])
    redis.call('ZADD', names[1], 'XX', whole(now), found[i])
    if wake_for then
      wake_for[#wake_for + 1] = names
    else
      wake({ [ASKS] = names[2] }, now, now)
    end
  end
end

-- Who takes a slot for a task: a claim, or a task at the gate, of a worker.
local function holder_of(worker, token)
  return worker .. ' ' .. token
end

-- Gives a slot back; `wake_for` as above.
local function release(entries, waits, holder, now, wake_for)
  if redis.call('ZSCORE', entries, holder) then
    look_again(waits, now, wake_for)
    redis.call('ZREM', entries, holder)
  end
end

-- The slots that a task has taken: entries and waits of each.
local function slots_of(refs, about)
  local found = {}
  for i, ref in ipairs(refs) do
    for _, limit in ipairs(ref.limits) do
      if limit.tag == SLOTS then
        found[#found + 1], found[#found + 2] = about.limits[i][ENTRIES], about.limits[i][WAITS]
      end
    end
  end
  return found
end

-- Gives the slots of a claim back.
local function give_slots_back(about, worker, token, now, wake_for)
  for _, limit in ipairs(about.limits) do
    release(limit[ENTRIES], limit[WAITS], holder_of(worker, token), now, wake_for)
  end
end
