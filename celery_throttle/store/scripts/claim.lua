-- claim.lua: a worker's one call: renew its lease, settle, and take due tasks with their quota.
-- uses: lines
--
-- KEYS  1   hash: definitions of limits
--       2   zset: identities of messages that were parked but may not be acknowledged yet
--       3   zset: workers -> end of their lease (us)
--       4   hash: this worker's claims, token -> packed {line, about, task id, score, packed}
--       then per queue: lines, messages, due, asks
-- ARGV  1   now (us), or '' for the server's clock
--       2   the worker
--       3   its channel
--       4   lease (us)
--       5   how many tasks it wants; 0 only renews and settles
--       6   how far ahead (us) a slot may be booked
--       7   the token of the first task taken; those after it count up
--       8   longest time (us) between two asks
--       9   how many tokens follow that are settled; with a '-' before it, one that was not started
--       10  how many slots follow that are given back
--       11  '1' if the worker has registered its limits since its last call
--       12  how many tasks it has free processes for. The others that it wants will have one in a moment,
--           which is too early to take a slot of a concurrency limit for them
--       13  how far ahead (us) a start may be booked for these others
--       then those tokens; per slot its entries, waits and holder; then identities whose
--       acknowledgement is done
-- Reply {next ask (us from now; -1: after the worker has registered its limits, as a line needs one
--        that is not known, or the windows of its calendar have run out), a worker whose lease ran out or '',
--        {token, kind, starts in (us), waited (us), message, task id, slots}, ...}
--       kind 1: admitted, with slots, if it takes any: entries and waits of each. kind 0: no unit was taken,
--       because it expired or can never pass.
-- Work is bounded by the tasks wanted: at most 16 lines more are looked at than tasks taken. All that
-- may be taken of a line is read first, then decided, then written, each structure once.

local given, worker, channel = ARGV[1], ARGV[2], ARGV[3]
local now = clock(given)
local limits, parks, workers, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local till, room, ahead = now + tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local token, longest = tonumber(ARGV[7]), tonumber(ARGV[8])
local settled, released = tonumber(ARGV[9]), tonumber(ARGV[10])
local free, moment = tonumber(ARGV[12]), tonumber(ARGV[13])
local TOLD = 14
local missing = false
local visits = room + 16
local taken, wake_for = {}, {}

-- For so long (us) it is remembered when a queue with lines was looked at: processes may be busy as long.
local MINUTE, REMEMBERED = 60000000, 3600000000

-- How far ahead a start may be booked for the next task.
local function horizon()
  return #taken < free and ahead or moment
end

local function settle()
  local done, unstarted, acknowledged = {}, {}, {}
  for i = TOLD, TOLD + settled - 1 do
    local id = string.match(ARGV[i], '^%-(.*)')
    if id then
      unstarted[#unstarted + 1] = id
    else
      done[#done + 1] = ARGV[i]
    end
  end
  call_with('HDEL', claims, done)
  for _, id in ipairs(unstarted) do
    local claim = redis.call('HGET', claims, id)
    if claim then
      give_slots_back(cmsgpack.unpack(claim)[2], worker, id, now, wake_for)
      redis.call('HDEL', claims, id)
    end
  end
  local slots = TOLD + settled
  for i = slots, slots + 3 * released - 1, 3 do
    release(ARGV[i], ARGV[i + 1], ARGV[i + 2], now, wake_for)
  end
  for i = slots + 3 * released, #ARGV do
    acknowledged[#acknowledged + 1] = ARGV[i]
  end
  call_with('ZREM', parks, acknowledged)
end

-- What is known of a line of a waiting list: the limit at which it waits, and its about-table, also as it is
-- packed. Of what the server has lost there is only the waiting list.
local function about_of(queue, waiting, line)
  local found = redis.call('HGET', queue[LINES], line)
  if found then
    local packed = string.sub(found, 2)
    return string.byte(found), cmsgpack.unpack(packed), packed
  end
  local id = redis.call('ZRANGE', line, 0, 0)[1]
  local message = id and redis.call('HGET', queue[MESSAGES], id)
  local crowds = message and cmsgpack.unpack(message)[7]
  local about = { queue = queue, limits = { [0] = { [WAITING] = waiting } }, crowds = crowds }
  return 0, about, cmsgpack.pack(about)
end

-- How many tasks of a line may be handed out at once: of most as many as the line has turns before the next
-- one. Of a limit with slots or a log it is seen only once a task is written what the next one finds. Also
-- returns whether slots are taken.
local function most_of(refs, about, score, rival)
  local most, slots = rival and turns_before(about, score, rival) or room, false
  for _, ref in ipairs(refs) do
    for _, limit in ipairs(ref.limits or {}) do
      if limit.tag == SLOTS and #taken >= free then
        return 0
      elseif limit.tag == SLOTS or limit.tag == SLIDING_LOG then
        most, slots = 1, slots or limit.tag == SLOTS
      end
    end
  end
  return math.min(most, room - #taken), slots
end

-- The first tasks of a line, one after the other; beside a rival only those of the rank that has its turn.
local function first_of(entries, most, score, rival)
  local ids, rank = {}, rank_of(score)
  for i = 1, math.min(#entries, 2 * most), 2 do
    if rival and i > 1 and rank_of(entries[i + 1]) ~= rank then
      break
    end
    ids[#ids + 1] = entries[i]
  end
  return ids
end

-- Whether a limit takes longer to make up for the cost of a task than a start may be booked ahead. Such units
-- are taken for free processes only: they are lost if the task goes back to its line.
local function is_dear(refs)
  for _, ref in ipairs(refs) do
    for _, limit in ipairs(ref.limits) do
      if limit.tag ~= SLOTS and limit.cost / MILLION * limit.p > ahead * limit.q then
        return true
      end
    end
  end
  return false
end

-- Decides over tasks in their order, until one has to wait. Gives the ids of those that leave the line, what
-- they become as claims, whether quota is taken, and how long the next one waits at which limit; nil if no
-- one has to.
local function decide_all(ids, messages, head, at, refs, unknown, slots)
  local leaving, pairs_of, quota = {}, {}, false
  for i, id in ipairs(ids) do
    local packed = messages[i]
    if packed then
      local _, costs, expires, parked, message, score = unpack(cmsgpack.unpack(packed))
      local kind, wait, bound = 0, 0, 0
      -- If nobody knows its limits, it is handed out like one that has expired: then the gate decides.
      if at > 0 and not (expires > 0 and expires <= now) then
        if unknown and ARGV[11] == '0' then
          missing, visits = true, 0
          return leaving, pairs_of, quota, 0, at
        elseif not unknown then
          set_costs(refs, costs)
          if #taken >= free and is_dear(refs) then
            visits = 0
            return leaving, pairs_of, quota
          end
          wait, bound = decide(refs, now, true)
          kind = wait < 0 and 0 or 1
        end
      end
      if wait > (refs.held and 0 or horizon()) then
        return leaving, pairs_of, quota, wait, bound
      end
      wait = math.max(0, wait)
      local row = { token, kind, wait, now - parked, message, id }
      if kind == 1 then
        reserve(refs, now, now + wait)
        row[7], quota = slots, true
      end
      taken[#taken + 1] = row
      pairs_of[#pairs_of + 1], pairs_of[#pairs_of + 2] = token, head .. cmsgpack.pack(id, score, packed)
      token = token + 1
    end
    leaving[#leaving + 1] = id -- also one whose message the server has lost
  end
  return leaving, pairs_of, quota
end

-- The next task of a line has to wait. Returns whether the limit of its list has no room left.
local function hold(queue, waiting, line, at, about, refs, wait, bound)
  local limit = about.limits[at]
  if missing then
    return true
  elseif bound == at then
    -- What cannot be booked ahead is not to be looked at ahead, again and again.
    local later = refs.held and ahead or 0
    redis.call('ZADD', queue[DUE], due_time(now, wait + later), waiting)
    if refs.held or wait > longest then
      -- It may come sooner if a slot is given back or the limit changes: that must find the list.
      register(limit, queue)
    end
    return true
  end
  attach(line, about, bound, now, wait)
  count(limit, -redis.call('ZCARD', line))
  redis.call('ZREM', waiting, line)
  tidy(limit, queue)
end

-- Hands out the first tasks of a line, which comes first in its waiting list, or lets the line wait. Returns
-- whether its list has nothing more for now.
local function serve_line(queue, waiting, line, score, rival)
  local at, about, packed_about = about_of(queue, waiting, line)
  if at > 0 and about.limits[at][WAITING] ~= waiting then
    -- A script ended when it had not moved it quite.
    attach(line, about, at, now, 0)
    redis.call('ZREM', waiting, line)
    return false
  end
  local refs = at > 0 and refs_of(about, {}) or {}
  local unknown = at > 0 and look_at(limits, about, refs, now, given, holder_of(worker, token), till - now)
  local most, slots = most_of(refs, about, score, rival)
  if most == 0 then
    visits = 0
    return true
  end
  local entries = redis.call('ZRANGE', line, 0, most, 'WITHSCORES')
  local ids = first_of(entries, most, score, rival)
  if #ids == 0 and at > 0 then
    repair()(queue, now)
    return false
  end
  local messages = read_many('HMGET', queue[MESSAGES], ids, 1, #ids)
  local leaving, pairs_of, quota, wait, bound =
    decide_all(ids, messages, claim_head(line, packed_about), at, refs, unknown,
               slots and slots_of(refs, about) or nil)
  if #pairs_of > 0 then
    if 2 * #taken == #pairs_of then
      write_lease(workers, worker, till, now) -- for who gives them back, whatever becomes of it
    end
    call_with('HSET', claims, pairs_of)
  end
  if quota then
    write_all(refs, now, given)
  end
  if #leaving > 0 or #ids == 0 then
    local next_score = entries[2 * #leaving + 2]
    leave(line, about, at, leaving, now, next_score ~= nil)
    end_turn(queue, waiting, line, at, about, score, rival, #leaving, next_score)
    if not next_score and not rival then
      return true
    end
  end
  return wait and hold(queue, waiting, line, at, about, refs, wait, bound)
end

-- Serves one waiting list, until its limit has no room left or the list is empty. If there are not
-- processes enough for that, the other lists that are due come first the next time.
local function serve(queue, waiting)
  while #taken < room and visits > 0 do
    local line, score, rival = next_line(waiting)
    if not line then
      if redis.call('ZREM', queue[DUE], waiting) == 1 then
        repair()(queue, now)
      end
      return
    end
    visits = visits - 1
    if serve_line(queue, waiting, line, score, rival) then
      return
    end
  end
  redis.call('ZADD', queue[DUE], 'XX', 'GT', whole(now), waiting)
end

-- When this worker should ask again. Some worker must ask at each due moment, but not all: each
-- takes the first free place from that moment on, a gap behind the last that is taken. So the asks
-- a second depend on the gap, not on the number of workers, and one that fails costs one gap.
local function place(queue, due)
  local gap = math.min(100000, math.max(10000, (due - now) / 10))
  local taken_by_others = redis.call('ZRANGE', queue[ASKS], whole(due - gap / 2),
                                     '+inf', 'BYSCORE', 'LIMIT', 0, 64, 'WITHSCORES')
  local free = due
  for i = 2, #taken_by_others, 2 do
    local other = tonumber(taken_by_others[i])
    if other >= free + gap then
      break
    end
    free = math.max(free, other + gap)
  end
  return free
end

local function next_ask(queue)
  redis.call('ZREM', queue[ASKS], channel)
  local due = tonumber(redis.call('ZRANGE', queue[DUE], 0, 0, 'WITHSCORES')[2])
  if due and (#taken == room or visits == 0) then
    return now
  elseif not due and redis.call('EXISTS', queue[LINES]) == 1 then
    repair()(queue, now)
    return now
  end
  local ask = now + longest
  if due then
    ask = math.min(ask, place(queue, math.max(now, due - ahead)))
  end
  write_lease(queue[ASKS], channel, ask, now)
  redis.call('PEXPIRE', queue[ASKS], expiry(due and REMEMBERED or 2 * longest, given))
  return ask
end

-- What was written of a queue by a clock that was set back since is as far ahead as it was. Channels of
-- workers that are gone are forgotten once a minute.
local function follow_queue_clock(queue)
  local written = -(redis.call('ZSCORE', queue[ASKS], WRITTEN) or 0)
  if written > now + FARTHEST then
    move_back(queue[DUE], written - now)
    redis.call('DEL', queue[ASKS])
  elseif math.floor(written / MINUTE) < math.floor(now / MINUTE) then
    redis.call('ZREMRANGEBYSCORE', queue[ASKS], '(0', whole(now))
  end
end

-- A server that is out of memory carries out a script whose first write takes something away: then
-- lines drain, and make room.
redis.call('ZREM', workers, 'nobody')
follow_clock(workers, now)
settle()
local late = redis.call('ZRANGE', workers, '(0', whole(now), 'BYSCORE', 'LIMIT', 0, 2)
local dead = late[late[1] == worker and 2 or 1] or '' -- its own lease is about to be renewed
local ask = now + longest
for key = 5, #KEYS, 4 do
  local queue = { KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3] }
  follow_queue_clock(queue)
  while #taken < room and visits > 0 do
    local waiting = redis.call('ZRANGE', queue[DUE], '-inf', whole(now + horizon()),
                               'BYSCORE', 'LIMIT', 0, 1)[1]
    if not waiting then
      break
    end
    serve(queue, waiting)
  end
  ask = math.min(ask, next_ask(queue))
end
if #taken == 0 then
  lease(workers, worker, claims, till, now)
end
-- A slot that was given back is mostly taken by this worker; others are woken for what it leaves.
for _, names in ipairs(wake_for) do
  if redis.call('ZCOUNT', names[1], '-inf', whole(now)) > 0 then
    wake({ [ASKS] = names[2] }, now, now)
  end
end
return { missing and -1 or ask - now, dead, unpack(taken) }
