-- park.lua: try once more, else let the task join its line. Idempotent by task id.
-- uses: queue_capacity
--
-- KEYS  1   hash: definitions of limits
--       2   zset: identities of messages that were parked but may not be acknowledged yet
--       3   the task's line
--       4-7 the queue's lines, messages, due, asks
--       then per limit: state, entries, pause, pause of the key, backlog, waiting, waits, waited
--       then, if the broker deletes the queue with its last consumer: the set `temporary`, see `consumed_queues.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   task id
--       3   identity of the message: task id and how often it was retried or replaced
--       4   '1' when the broker says it was delivered before
--       5   rank of its priority, 0 to 255, the lowest first
--       6   when it expires (us), 0 for never
--       7   longest wait accepted (us), -1 for any
--       8   how long (us) an identity is remembered
--       9   the message
--       10  who takes a slot, if there are any
--       11  how long (us) it is taken at first
--       12  '1' if it may run now; '0' if there is no process for it; 'behind' if it is only to join others
--           that wait, as it was sent just now
--       13  how many limits
--       then per limit: name, field, cost (millionths of a unit)
--       then identities whose acknowledgement is done
-- Reply {'alone'}                                       nothing waits at its limits: nothing was done
--       {'admitted', entries and waits of each slot}    a unit was free after all: run it
--       {'parked', position in its line, expected wait (us), index that binds, wait (us)}
--       {'known'}                                       parked before: acknowledge, no more
--       {'late', expected wait (us), index that binds, for how long (us) that is paused}  would wait too
--                                                       long: nothing was taken
--       {'full', index, max-waiting}    so many wait already; 0: the queue of a leaky-queue is full
--       {'crowded', index, max-keys, wait (us)}    so many other keys are in use, for so long; -1: for ever
--       {'never', index, burst}                         the cost can never pass
--       {'unknown', index, now (us)}    not defined, or the windows of a calendar have run out

local given = ARGV[1]
local now = clock(given)
local limits, parks, line = KEYS[1], KEYS[2], KEYS[3]
local id, identity = ARGV[2], ARGV[3]
local count_of = tonumber(ARGV[13])
local queue = { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }

for i = 14 + 3 * count_of, #ARGV do
  redis.call('ZREM', parks, ARGV[i])
end
if #ARGV >= 14 + 3 * count_of then
  -- What a crashed worker parked and never told of is forgotten in time, now and then.
  redis.call('ZREMRANGEBYSCORE', parks, '-inf', whole(now - tonumber(ARGV[8])))
end
if ARGV[4] == '1' and redis.call('ZSCORE', parks, identity) then
  return { 'known' }
end

local about, costs = { queue = queue, limits = {} }, {}
for i = 1, count_of do
  local key, arg = 8 * i, 11 + 3 * i
  about.limits[i] = { ARGV[arg], ARGV[arg + 1], unpack(KEYS, key, key + 7) }
  costs[i] = tonumber(ARGV[arg + 2])
end
local refs = refs_of(about, costs)
local unknown = look_at(limits, about, refs, now, given, ARGV[10], tonumber(ARGV[11]))
if unknown then
  return { 'unknown', unknown, whole(now) }
end
for i, ref in ipairs(refs) do
  measure(ref, about.limits[i])
end
about.crowds, about.temporary = crowds_of(refs), KEYS[8 + 8 * count_of]
local wait, bound, place = decide(refs, now, true)
if wait < 0 then
  return { 'never', bound, refs[bound].limits[place].burst }
end
local crowded, till = full_crowd(refs, now)
if crowded > 0 and redis.call('EXISTS', line) == 0 then
  return { 'crowded', crowded, refs[crowded].max_keys, till }
end
local parked = redis.call('HEXISTS', queue[MESSAGES], id) == 1
if not parked then
  local free, sent = wait == 0 and ARGV[12] == '1', ARGV[12] == 'behind'
  for i, ref in ipairs(refs) do
    if (free or sent) and ref.waiting > 0 then
      free, sent, bound = false, false, i
    end
  end
  if sent then
    return { 'alone' }
  end
  if free then
    take(refs, now, now, given)
    return { 'admitted', unpack(slots_of(refs, about)) }
  end
end

-- Lines at one limit have their turns, those of worse priority later: so a task in place n waits for n of
-- each other line, if they are of one priority and weight. More than that nobody counts. When a slot will
-- be given back, nobody knows: that counts as no wait.
local function expected(position)
  local longest, at, later = 0, math.max(1, bound), whole((tonumber(ARGV[5]) + 1) * RANK)
  for i, ref in ipairs(refs) do
    local before = math.max(position - 1, math.min(ref.waiting,
      position * redis.call('ZCOUNT', about.limits[i][WAITING], '-inf', '(' .. later)))
    for _, limit in ipairs(ref.limits) do
      local own = ref.paused
      if limit.tag ~= SLOTS then
        own = math.max(own, limit.algorithm.check(limit, now, true))
          + math.ceil(before * limit.cost / MILLION * limit.p / limit.q)
      end
      if own > longest then
        longest, at = own, i
      end
    end
  end
  return longest, at
end

if parked then
  local position = (redis.call('ZRANK', line, id) or 0) + 1
  return { 'parked', position, expected(position), math.max(1, bound), wait }
end
local without = full(refs)
if without then
  return { 'full', without, refs[without].space.most }
end
local score = score_of(line, tonumber(ARGV[5]), now)
local position = redis.call('ZCOUNT', line, '-inf', whole(score)) + 1
local total, at = expected(position)
local max_wait = tonumber(ARGV[7])
if max_wait >= 0 and total > max_wait then
  return { 'late', total, at, refs[at].paused }
end

local packed = cmsgpack.pack({ line, costs, tonumber(ARGV[6]), now, ARGV[9], score, about.crowds })
local earliest = redis.call('ZRANGE', queue[DUE], 0, 0, 'WITHSCORES')[2]
join(line, about, id, score, packed, now, wait, bound)
local memory = tonumber(ARGV[8])
if ARGV[12] ~= 'behind' then
  redis.call('ZADD', parks, whole(now), identity)
  redis.call('PEXPIRE', parks, expiry(memory, given))
end
if not earliest or now + wait < tonumber(earliest) then
  wake(queue, now, now + wait)
end
return { 'parked', position, total, math.max(1, bound), wait }
