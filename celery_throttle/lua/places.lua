-- places.lua: where lines wait: the two ends of every change, backlogs and waiting lists.
-- uses: decide
--
-- Library. What is kept, and in which tables its names are, is told by `lines.lua`.

local LINES, MESSAGES, DUE, ASKS = 1, 2, 3, 4
local ENTRIES, BACKLOG, WAITING, WAITS, WAITED = 4, 7, 8, 9, 10

-- Scores begin with 8 bits of rank: a task's in its line, and a line's in its waiting list, which goes on
-- with 28 bits of pass, and 17 bits that tell which of those with one pass came first. A line of weight 1
-- passes so much further with each turn; it can be divided by most weights.
local RANK, PASS, STRIDE = 2 ^ 45, 2 ^ 17, 55440
local LAST_PASS = 2 ^ 27

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

-- The waiting list has lost a line: forget it when that was the last.
local function tidy(limit, queue)
  if redis.call('EXISTS', limit[WAITING]) == 0 then
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

-- Puts a line into a waiting list, behind those of its rank and pass.
local function put(waiting, line, rank, pass)
  local from = rank * RANK + pass * PASS
  local last = redis.call('ZRANGE', waiting, whole(from + PASS - 1), whole(from),
                          'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  redis.call('ZADD', waiting, whole(last and last + 1 or from), line)
end

-- A line comes to a waiting list, or to another rank there. It waits for one turn, as if it had just had
-- one: so nobody gains by coming again.
local function enter(waiting, line, about)
  local rank = rank_of_line(line) or 0
  local first = redis.call('ZRANGE', waiting, whole(rank * RANK), whole((rank + 1) * RANK - 1),
                           'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  put(waiting, line, rank, first and pass_of(first) + stride_of(about) or 0)
end

-- The first task of a line may be another: then the line is of the rank of that.
local function follow(waiting, line, about)
  local rank = rank_of(redis.call('ZSCORE', waiting, line))
  if rank and rank ~= rank_of_line(line) then
    enter(waiting, line, about)
  end
end

-- Passes of a rank begin anew. That many lines are rewritten, once in thousands of turns of each.
local function begin_anew(waiting, rank, pass)
  local lines = redis.call('ZRANGE', waiting, whole(rank * RANK), whole((rank + 1) * RANK - 1),
                           'BYSCORE', 'WITHSCORES')
  for i = 1, #lines, 2 do
    redis.call('ZADD', waiting, whole(lines[i + 1] - pass * PASS), lines[i])
  end
end

-- The line that comes first in a waiting list, by its score, had its turn. Returns whether it goes on.
local function next_turn(waiting, line, about, score)
  local rank, pass, before = rank_of_line(line), pass_of(score), rank_of(score)
  if not rank then
    redis.call('ZREM', waiting, line)
  elseif rank ~= before then
    enter(waiting, line, about)
  else
    put(waiting, line, rank, pass + stride_of(about))
    if pass >= LAST_PASS then
      begin_anew(waiting, rank, pass)
    end
  end
  return rank
end

-- A line begins (1) or ends (-1): as long as it holds tasks, its keys are in use.
local function mark(about, change, now)
  for _, names in ipairs(about.crowds or {}) do
    crowd().line(names[1], names[2], change, now, ARGV[1])
  end
end
