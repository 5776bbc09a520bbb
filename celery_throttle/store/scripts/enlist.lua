-- enlist.lua: tasks of a fan-out join their lines, each of them once, whatever became of it since.
-- uses: queue_capacity, bulk_commands
--
-- KEYS  1   hash: definitions of limits
--       2   record of the fan-out, see `fan_out.lua`
--       then per queue: lines, messages, due, asks; then per limit, key and queue: state, entries, pause, pause
--       of the key, backlog, waiting, waits, waited; then the lines
-- ARGV  1   now (us), or '' for the server's clock
--       2   how many tasks of the fan-out may wait; 0 for any number
--       3   how long (us) to keep what is known of the fan-out after nothing waits
--       4   '1' if no more will come
--       5   how many queues
--       6   how many limits, each for a key and queue
--       7   the key that pauses the fan-out
--       then per limit: name, field
--       then per line: packed {which queue, which limits} (2 bytes each)
--       then per task: packed {which line (2 bytes), its number in the record (1), rank of its priority (1; 0
--       to 255, the lowest first), when it expires (us; 0 for never; 8), per limit: cost (millionths of a
--       unit; 8)}, its id, its message
-- Reply {'done', tasks dealt with, of these sent now, waiting}
--       {'hold', ...the same}    as many wait as may, for the fan-out or for a limit: go on with the next later
--       {'crowded', ...the same, wait (us), index of its limit, max-keys}    likewise: so many keys are in
--                       use, for so long; -1 for ever
--       {'never', ...the same, index of its limit, burst}    the cost of the next can never pass
--       {'cancelled', ...the same}    the fan-out was; the rest is not to be sent
--       {'unknown', index, now (us)}    nothing was done: a limit, of all that were given, is not defined, or
--                       the windows of a calendar have run out

local given, most, keep, record = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), KEYS[2]
local now = clock(given)
if redis.call('HEXISTS', record, 'cancelled') == 1 then
  return { 'cancelled', 0, 0, tonumber(redis.call('HGET', record, 'waiting') or 0) }
end
local queues, numbers, all, lines = {}, {}, { limits = {} }, {}
local key, arg = 3, 8

for i = 1, tonumber(ARGV[5]) do
  queues[i], key = { unpack(KEYS, key, key + 3) }, key + 4
end
local costs = {}
for i = 1, tonumber(ARGV[6]) do
  all.limits[i] = { ARGV[arg], ARGV[arg + 1], unpack(KEYS, key, key + 7) }
  costs[i], key, arg = MILLION, key + 8, arg + 2
end
local refs = refs_of(all, costs)
local unknown = #refs > 0 and look_at(KEYS[1], all, refs, now, given, '', 0)
if unknown then
  return { 'unknown', unknown, whole(now) }
end
local spaces = {}
for i, ref in ipairs(refs) do
  measure(ref, all.limits[i])
  -- It is one limit, whatever queues its tasks are of.
  spaces[all.limits[i][BACKLOG]] = spaces[all.limits[i][BACKLOG]] or ref.space
  ref.space = spaces[all.limits[i][BACKLOG]]
end

for i = key, #KEYS do
  local packed = ARGV[arg]
  local line = { name = KEYS[i], refs = {}, last = {}, more = {}, messages = {} }
  line.about = { queue = queues[struct.unpack('<H', packed)], limits = {}, fan_out = record }
  for from = 3, #packed, 2 do
    local place = struct.unpack('<H', packed, from)
    line.refs[#line.refs + 1], line.about.limits[#line.refs + 1] = refs[place], all.limits[place]
  end
  line.about.crowds, line.about.weight = crowds_of(line.refs), weight_of(line.refs)
  line.known = redis.call('EXISTS', line.name) == 1
  line.costs = '<' .. string.rep('d', #line.refs)
  lines[#lines + 1], arg = line, arg + 1
end

for _, field in ipairs({ 'old_at', 'new_at' }) do
  redis.call('HSETNX', record, field, whole(now))
end
for _, field in ipairs({ 'waiting', 'sent', 'old_ended', 'new_ended' }) do
  redis.call('HSETNX', record, field, 0)
end
redis.call('HSET', record, 'keep', whole(keep), 'pause', ARGV[7])
for _, queue in ipairs(queues) do
  local known = record .. ':queues'
  numbers[queue] = redis.call('HGET', known, queue[LINES])
  if not numbers[queue] then
    numbers[queue] = whole(redis.call('HLEN', known) / 2)
    redis.call('HSET', known, queue[LINES], numbers[queue], numbers[queue], cmsgpack.pack(queue))
  end
end

-- Why a task may not join its line, nil if it may.
local function refused(line, costs, waiting)
  if most > 0 and waiting >= most or full(line.refs) then
    return { 'hold' }
  end
  local crowded, till = 0, 0
  if not line.known then
    crowded, till = full_crowd(line.refs, now)
  end
  if crowded > 0 then
    return { 'crowded', till, crowded, line.refs[crowded].max_keys }
  end
  for i, ref in ipairs(line.refs) do
    for _, limit in ipairs(ref.limits) do
      if costs[i] > limit.burst * MILLION and limit.tag ~= SLOTS then
        return { 'never', i, limit.burst }
      end
    end
  end
end

-- The first task of a line in this call joins as any does.
local function add_first(line, id, rank, score, packed, costs)
  local about = line.about
  for i, ref in ipairs(line.refs) do
    for _, limit in ipairs(ref.limits) do
      limit.cost = costs[i]
    end
  end
  local wait, bound = decide(line.refs, now, true)
  local earliest = redis.call('ZRANGE', about.queue[DUE], 0, 0, 'WITHSCORES')[2]
  join(line.name, about, id, score, packed, now, wait, bound)
  line.known, line.first = true, rank
  if not earliest or now + wait < tonumber(earliest) then
    wake(about.queue, now, now + wait)
  end
end

-- Those behind it need only be counted.
local function add(line, id, rank, expires, message, costs)
  local about = line.about
  local score = line.last[rank] and line.last[rank] + 1 or score_of(line.name, rank, now)
  local packed = cmsgpack.pack({ line.name, costs, expires, now, message, score, about.crowds })
  if not line.first or rank < line.first then
    add_first(line, id, rank, score, packed, costs)
  else
    local more, messages = line.more, line.messages
    more[#more + 1], more[#more + 2] = whole(score), id
    messages[#messages + 1], messages[#messages + 2] = id, packed
  end
  line.last[rank] = score
  for _, ref in ipairs(line.refs) do
    ref.space.room = ref.space.room - 1
  end
end

-- What `join` has not done for those behind the first.
local function add_more()
  local all = 0
  for _, line in ipairs(lines) do
    local more = #line.more / 2
    if more > 0 then
      call_with('ZADD', line.name, line.more)
      local found = redis.call('HGET', line.about.queue[LINES], line.name)
      if found then
        local at, about = unpack_line(found)
        count(about.limits[at], more)
      end
      call_with('HSET', line.about.queue[MESSAGES], line.messages)
    end
    all = all + more
  end
  if all > 0 then
    fan_out_waits(record, all, given)
  end
end

-- Whether a task waits in its line already: a call ended before it could note that. Nil if it waits for
-- somebody else.
local function is_there(line, id)
  local packed = redis.call('HGET', line.about.queue[MESSAGES], id)
  if packed then
    return cmsgpack.unpack(packed)[1] == line.name or nil
  end
  return false
end

-- Those that were sent by this call, as they are to be noted: hash -> id, number of the queue, ...
local sent, dealt, reason, noted, here = 0, 0, { 'done' }, {}, {}
local waiting = tonumber(redis.call('HGET', record, 'waiting'))
while arg <= #ARGV do
  local head, id = ARGV[arg], ARGV[arg + 1]
  local at, number, rank, expires = struct.unpack('<HBBd', head)
  local line, tasks = lines[at], record .. ':' .. number
  local costs = { struct.unpack(line.costs, head, 13) }
  costs[#costs] = nil -- where it ends
  if not here[id] and redis.call('HEXISTS', tasks, id) == 0 then
    local why, there = refused(line, costs, waiting), is_there(line, id)
    if why then
      reason = why
      break
    elseif there == false then
      add(line, id, rank, expires, ARGV[arg + 2], costs)
    end
    if there ~= nil then
      noted[tasks] = noted[tasks] or {}
      table.insert(noted[tasks], id)
      table.insert(noted[tasks], numbers[line.about.queue])
      here[id], sent, waiting = true, sent + 1, waiting + 1
    end
  end
  dealt, arg = dealt + 1, arg + 3
end
add_more()
for tasks, pairs_of in pairs(noted) do
  call_with('HSET', tasks, pairs_of)
end
redis.call('HINCRBY', record, 'sent', sent)
if ARGV[4] == '1' and reason[1] == 'done' then
  redis.call('HSET', record, 'closed', '1')
elseif sent > 0 then
  redis.call('HDEL', record, 'closed')
end
if waiting == 0 then
  fan_out_waits(record, 0, given)
end
local why = table.remove(reason, 1)
return { why, dealt, sent, waiting, unpack(reason) }
