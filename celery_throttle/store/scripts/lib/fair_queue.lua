-- fair_queue.lua: where lines wait: the two ends of every change, backlogs and waiting lists.
-- uses: decide
--
-- Library. What is kept, and in which tables its names are, is told by `lines.lua`.

local LINES, MESSAGES, DUE, ASKS = 1, 2, 3, 4
local ENTRIES, BACKLOG, WAITING, WAITS, WAITED = 4, 7, 8, 9, 10

-- Scores begin with 8 bits of rank: a task's in its line, and a line's in its waiting list, which goes on
-- with 28 bits of pass, and 17 bits that tell which of those with one pass came first. A line of weight 1
-- passes so much further with each turn; it can be divided by most weights. After the last pass comes 0
-- again: no two lines of a rank are farther apart than a stride, so it is known which are behind.
local RANK, PASS, PASSES, STRIDE = 2 ^ 45, 2 ^ 17, 2 ^ 28, 110880
local NEAR = 2 * STRIDE

local function pack_line(at, about)
  return string.char(at) .. cmsgpack.pack(about)
end

local function unpack_line(packed)
  return string.byte(packed, 1), cmsgpack.unpack(string.sub(packed, 2))
end

-- A wait of 'never' is not one to come back for in time order: the task is handed out at once.
local function due_time(now, wait)
  return whole(now + math.max(0, wait))
end

-- Backlogs and waiting lists are the two things that every change of a line must keep right.
local function count(limit, change)
  if change ~= 0 and limit[BACKLOG] and redis.call('INCRBY', limit[BACKLOG], change) <= 0 then
    redis.call('DEL', limit[BACKLOG])
  end
end

-- Lets a waiting list be found by who changes its limit. Returns whether it could not be before.
local function register(limit, queue)
  redis.call('SADD', limit[WAITED], limit[WAITS])
  local names = cmsgpack.pack({ queue[DUE], queue[ASKS] })
  return redis.call('HSET', limit[WAITS], limit[WAITING], names) == 1
end

-- The waiting list has lost a line: forget it when that was the last, which may be known.
local function tidy(limit, queue, was_last)
  if was_last or redis.call('EXISTS', limit[WAITING]) == 0 then
    redis.call('ZREM', queue[DUE], limit[WAITING])
    if limit[WAITS] then
      redis.call('HDEL', limit[WAITS], limit[WAITING])
      if redis.call('EXISTS', limit[WAITS]) == 0 then
        redis.call('SREM', limit[WAITED], limit[WAITS])
        redis.call('DEL', limit[BACKLOG])
      end
    end
  end
end

-- Of a score, or nil.
local function rank_of(score)
  return score and math.floor(score / RANK)
end

local function pass_of(score)
  return math.floor(score % RANK / PASS)
end

-- Which tasks of a line come first is told by their ranks. Nil if it has none.
local function rank_of_line(line)
  return rank_of(redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')[2])
end

local function stride_of(about)
  return math.floor(STRIDE / (about.weight or 1))
end

-- The line that has the next turn of those of its rank, and its score: the one that was found at the head
-- of them, if that does not come after the last pass.
local function next_of_rank(waiting, found)
  if found[2] and pass_of(found[2]) < NEAR then
    local ends = (rank_of(found[2]) + 1) * RANK
    local before = redis.call('ZRANGE', waiting, whole(ends - NEAR * PASS), whole(ends - 1),
                              'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    return before[1] and before or found
  end
  return found
end

-- The line of a waiting list that has the next turn, its score, and that of the line after it; nil if there
-- is none, and the line's own if it is not known.
local function next_line(waiting)
  local found = redis.call('ZRANGE', waiting, 0, 1, 'WITHSCORES')
  if not found[4] then
    return found[1], found[2]
  end
  local first = next_of_rank(waiting, found)
  return first[1], first[2], first == found and found[4] or first[2]
end

-- How many turns a line has before the other, by their scores: at least one.
local function turns_before(about, score, rival)
  if rank_of(rival) > rank_of(score) then
    return math.huge
  end
  return math.max(1, math.ceil((pass_of(rival) - pass_of(score)) / stride_of(about)))
end

-- Puts a line into a waiting list, behind those of its rank and pass.
local function put(waiting, line, rank, pass)
  local from = rank * RANK + pass % PASSES * PASS
  local last = redis.call('ZRANGE', waiting, whole(from + PASS - 1), whole(from),
                          'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  redis.call('ZADD', waiting, whole(last and math.min(last + 1, from + PASS - 1) or from), line)
end

-- A line comes to a waiting list, or to another rank there. It waits for one turn, as if it had just had
-- one: so nobody gains by coming again.
local function enter(waiting, line, about)
  local rank = rank_of_line(line) or 0
  local found = redis.call('ZRANGE', waiting, whole(rank * RANK), whole((rank + 1) * RANK - 1),
                           'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local first = next_of_rank(waiting, found)[2]
  put(waiting, line, rank, first and pass_of(first) + stride_of(about) or 0)
end

-- The first task of a line may be another: then the line is of the rank of that.
local function follow(waiting, line, about)
  local rank = rank_of(redis.call('ZSCORE', waiting, line))
  if rank and rank ~= rank_of_line(line) then
    enter(waiting, line, about)
  end
end

-- The line that has the next turn, by its score, had some; `next_score` is that of its first task now, if there
-- is one. Without a rival it may stay where it is, unless the last pass is near: who comes after it gets its
-- place from there.
local function end_turn(queue, waiting, line, at, about, score, rival, turns, next_score)
  local rank = rank_of(next_score)
  if not rank then
    redis.call('ZREM', waiting, line)
    if not rival then
      tidy(about.limits[at], queue, true)
    end
  elseif rank ~= rank_of(score) then
    enter(waiting, line, about)
  elseif rival or pass_of(score) >= PASSES - NEAR then
    put(waiting, line, rank, pass_of(score) + turns * stride_of(about))
  end
end

-- A line begins (1) or ends (-1): as long as it holds tasks, its keys are in use.
local function mark(about, change, now)
  for _, names in ipairs(about.crowds or {}) do
    key_cap().line(names[1], names[2], change, now, ARGV[1])
  end
end

-- A line has no tasks any more.
local function forget(line, about, now)
  local queue = about.queue
  redis.call('HDEL', queue[LINES], line)
  mark(about, -1, now)
  if about.temporary and redis.call('EXISTS', queue[LINES]) == 0 then
    redis.call('ZREM', about.temporary, queue[LINES])
  end
end
