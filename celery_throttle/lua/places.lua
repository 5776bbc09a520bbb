-- places.lua: where lines wait: the two ends of every change, backlogs and waiting lists.
-- uses: decide
--
-- Library. What is kept, and in which tables its names are, is told by `lines.lua`.

local LINES, MESSAGES, DUE, ASKS = 1, 2, 3, 4
local ENTRIES, BACKLOG, WAITING, WAITS, WAITED = 4, 7, 8, 9, 10

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

-- A line begins (1) or ends (-1): as long as it holds tasks, its keys are in use.
local function mark(about, change, now)
  for _, names in ipairs(about.crowds or {}) do
    crowd().line(names[1], names[2], change, now, ARGV[1])
  end
end
