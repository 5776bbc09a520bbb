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
--       5   how many tasks it has free processes for; 0 only renews and settles
--       6   how far ahead (us) a slot may be booked
--       7   the token of the first task taken; those after it count up
--       8   longest time (us) between two asks
--       9   how many tokens follow that are settled; with a '-' before it, one that was not started
--       10  how many slots follow that are given back
--       11  '1' if the worker has registered its limits since its last call
--       then those tokens; per slot its entries, waits and holder; then identities whose
--       acknowledgement is done
-- Reply {next ask (us from now; -1: after the worker has registered its limits, as a line needs one
--        that is not known, or the windows of its calendar have run out), a worker whose lease ran out or '',
--        {token, kind, starts in (us), waited (us), message, task id, slots}, ...}
--       kind 1: admitted, with slots: entries and waits of each. kind 0: no unit was taken, because it
--       expired or can never pass.
-- Work is bounded by the tasks wanted: at most 16 lines more are looked at than tasks taken.

local given, worker, channel = ARGV[1], ARGV[2], ARGV[3]
local now = clock(given)
local limits, parks, workers, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local till, room, ahead = now + tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local token, longest = tonumber(ARGV[7]), tonumber(ARGV[8])
local settled, released = tonumber(ARGV[9]), tonumber(ARGV[10])
local missing = false
local visits = room + 16
local taken, wake_for = {}, {}

-- For so long (us) it is remembered when a queue with lines was looked at: processes may be busy as long.
local MINUTE, REMEMBERED = 60000000, 3600000000

-- A server that is out of memory carries out a script whose first write takes something away: then
-- lines drain, and make room.
redis.call('ZREM', workers, 'nobody')
follow_clock(workers, now)
for i = 12, #ARGV do
  local slot = i - 12 - settled
  if slot < 0 then
    local id = string.gsub(ARGV[i], '^%-', '')
    local claim = id ~= ARGV[i] and redis.call('HGET', claims, id)
    if claim then
      give_slots_back(cmsgpack.unpack(claim)[2], worker, id, now, wake_for)
    end
    redis.call('HDEL', claims, id)
  elseif slot >= 3 * released then
    redis.call('ZREM', parks, ARGV[i])
  elseif slot % 3 == 0 then
    release(ARGV[i], ARGV[i + 1], ARGV[i + 2], now, wake_for)
  end
end
lease(workers, worker, claims, till, now)
local dead = redis.call('ZRANGE', workers, '(0', whole(now), 'BYSCORE', 'LIMIT', 0, 1)[1] or ''

-- What is known of a line of a waiting list: the limit at which it waits, its about-table, its first task
-- and the message of that, or nil for what the server has lost.
local function read_line(queue, waiting, line)
  local packed = redis.call('HGET', queue[LINES], line)
  local id = redis.call('ZRANGE', line, 0, 0)[1]
  local message = id and redis.call('HGET', queue[MESSAGES], id)
  if packed then
    local at, about = unpack_line(packed)
    return at, about, id, message
  end
  local crowds = message and cmsgpack.unpack(message)[7]
  return 0, { queue = queue, limits = { [0] = { [WAITING] = waiting } }, crowds = crowds }, id, message
end

-- Hands out the first task of a line, which comes first in its waiting list, or lets the line wait. Returns
-- whether its limit has no room left.
local function serve_line(queue, waiting, line, score, at, about, id, packed)
  local _, costs, expires = unpack(cmsgpack.unpack(packed))
  local refs, holder = refs_of(about, costs), holder_of(worker, token)
  local kind, wait, bound = 0, 0, 0
  -- If nobody knows its limits, it is handed out like one that has expired: then the gate decides.
  local ends = at == 0 or expires > 0 and expires <= now
  local unknown = not ends and look_at(limits, about, refs, now, given, holder, till - now)
  if unknown and ARGV[11] == '0' then
    missing, visits = true, 0
    return true
  elseif not ends and not unknown then
    wait, bound = decide(refs, now, true)
    kind = wait < 0 and 0 or 1
  end
  if wait <= (refs.held and 0 or ahead) then
    wait = math.max(0, wait)
    if #taken == 0 then
      write_lease(workers, worker, till, now) -- for who gives them back, whatever becomes of it
    end
    local row = hand_out(claims, token, line, about, at, id, packed, kind, wait, now)
    if kind == 1 then
      take(refs, now, now + wait, given)
    end
    row[7] = kind == 1 and slots_of(refs, about) or {}
    taken[#taken + 1] = row
    token = token + 1
    if not next_turn(waiting, line, about, score) then
      tidy(about.limits[at], queue)
    end
  elseif bound == at then
    -- What cannot be booked ahead is not to be looked at ahead, again and again.
    local later = refs.held and ahead or 0
    redis.call('ZADD', queue[DUE], due_time(now, wait + later), waiting)
    if refs.held or wait > longest then
      -- It may come sooner if a slot is given back or the limit changes: that must find the list.
      register(about.limits[at], queue)
    end
    return true
  else
    attach(line, about, bound, now, wait)
    count(about.limits[at], -redis.call('ZCARD', line))
    redis.call('ZREM', waiting, line)
    tidy(about.limits[at], queue)
  end
end

-- Serves one waiting list, until its limit has no room left or the list is empty. If there are not
-- processes enough for that, the other lists that are due come first the next time.
local function serve(queue, waiting)
  while #taken < room and visits > 0 do
    local line, score = next_line(waiting)
    if not line then
      if redis.call('ZREM', queue[DUE], waiting) == 1 then
        mend()(queue, now)
      end
      return
    end
    visits = visits - 1
    local at, about, id, packed = read_line(queue, waiting, line)
    if at > 0 and about.limits[at][WAITING] ~= waiting then
      -- A script ended when it had not moved it quite.
      attach(line, about, at, now, 0)
      redis.call('ZREM', waiting, line)
    elseif packed then
      if serve_line(queue, waiting, line, score, at, about, id, packed) then
        return
      end
    elseif id or at == 0 then
      leave(line, about, at, id or '', now)
      if not next_turn(waiting, line, about, score) then
        tidy(about.limits[at], queue)
      end
    else
      mend()(queue, now)
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
    mend()(queue, now)
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

local ask = now + longest
for key = 5, #KEYS, 4 do
  local queue = { KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3] }
  follow_queue_clock(queue)
  while #taken < room and visits > 0 do
    local waiting = redis.call('ZRANGE', queue[DUE], '-inf', whole(now + ahead),
                               'BYSCORE', 'LIMIT', 0, 1)[1]
    if not waiting then
      break
    end
    serve(queue, waiting)
  end
  ask = math.min(ask, next_ask(queue))
end
if #taken > 0 then
  lease(workers, worker, claims, till, now)
end
-- A slot that was given back is mostly taken by this worker; others are woken for what it leaves.
for _, names in ipairs(wake_for) do
  if redis.call('ZCOUNT', names[1], '-inf', whole(now)) > 0 then
    wake({ [ASKS] = names[2] }, now, now)
  end
end
return { missing and -1 or ask - now, dead, unpack(taken) }
