-- fair_queue.lua: the order of lines in a waiting list: weighted fair queueing among the lines of one rank.
-- uses: clock, scores
-- Each dispatch from a line advances its virtual time by STRIDE / weight, and the line whose virtual time is least is
-- served next. In a score the rank is followed by 28 bits of virtual time and 17 bits that order the lines of one
-- virtual time by their arrival. Virtual time wraps around to 0. Lines of one rank are never farther apart than one
-- STRIDE, so it is known which of them are ahead.

-- The distance between the scores of two virtual times, and the virtual time at which it wraps around. STRIDE can be
-- divided by most weights.
local TIME_SPAN, TIME_MODULUS, STRIDE = 2 ^ 17, 2 ^ 28, 110880

-- Lines this close to the wrap-around may be followed by lines beyond it.
local WRAP_MARGIN = 2 * STRIDE

local function virtual_time_of(score)
  return math.floor(score % RANK_SPAN / TIME_SPAN)
end

local function stride_of(descriptor)
  return math.floor(STRIDE / (descriptor.weight or 1))
end

-- The rank of a line: of its first task. Nil if it has none.
local function rank_of_line(line)
  return rank_of(redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')[2])
end

-- The next line of one rank as {line, score}, given the one with the lowest score: if that may have wrapped around,
-- lines with the highest virtual times come before it.
local function next_of_rank(waiting, lowest)
  if lowest[2] and virtual_time_of(lowest[2]) < WRAP_MARGIN then
    local stop = (rank_of(lowest[2]) + 1) * RANK_SPAN
    local from = format_integer(stop - WRAP_MARGIN * TIME_SPAN)
    local before = redis.call('ZRANGE', waiting, from, format_integer(stop - 1),
                              'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    return before[1] and before or lowest
  end
  return lowest
end

-- Put a line into a waiting list, behind the lines of its rank and virtual time.
local function put_line(waiting, line, rank, virtual_time)
  local from = rank * RANK_SPAN + virtual_time % TIME_MODULUS * TIME_SPAN
  local last = from + TIME_SPAN - 1
  local found = redis.call('ZRANGE', waiting, format_integer(last), format_integer(from),
                           'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  redis.call('ZADD', waiting, format_integer(found and math.min(found + 1, last) or from), line)
end

-- Enter a line into a waiting list, or under another rank of it. It starts one stride behind the next line, as if it
-- had just been served: so no line gains by leaving and entering again.
local function enter_list(waiting, line, descriptor)
  local rank = rank_of_line(line) or 0
  local lowest = redis.call('ZRANGE', waiting, format_integer(rank * RANK_SPAN),
                            format_integer((rank + 1) * RANK_SPAN - 1), 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local first = next_of_rank(waiting, lowest)[2]
  put_line(waiting, line, rank, first and virtual_time_of(first) + stride_of(descriptor) or 0)
end

-- Move a line to the rank of its first task, which may be another than before.
local function update_rank(waiting, line, descriptor)
  local rank = rank_of(redis.call('ZSCORE', waiting, line))
  if rank and rank ~= rank_of_line(line) then
    enter_list(waiting, line, descriptor)
  end
end
