-- fair_service.lua: serves the lines of a waiting list in the order of `fair_queue.lua`.
-- uses: fair_queue, waiting_list

-- The next line of a waiting list, its score, and the score of the line after it. The last is nil if there is no
-- other line, and the line's own score if it is not known.
local function next_line(waiting)
  local lowest = redis.call('ZRANGE', waiting, 0, 1, 'WITHSCORES')
  if not lowest[4] then
    return lowest[1], lowest[2]
  end
  local first = next_of_rank(waiting, lowest)
  return first[1], first[2], first == lowest and lowest[4] or first[2]
end

-- How many dispatches a line has before the next line is ahead, by their scores: at least one.
local function dispatches_before(descriptor, score, next_score)
  if rank_of(next_score) > rank_of(score) then
    return math.huge
  end
  return math.max(1, math.ceil((virtual_time_of(next_score) - virtual_time_of(score)) / stride_of(descriptor)))
end

-- Advance the virtual time of a line by some dispatches; remove it from the list if it has no tasks left.
--   score        of the line as it was served
--   rival        score of the line after it; nil if there is none. Without a rival the line may stay where it is,
--                unless virtual time is about to wrap around: lines that enter take theirs from it
--   task_score   of its first task now; nil if it has none
local function advance_line(queue, waiting, line, limit_index, descriptor, score, rival, dispatches, task_score)
  local rank = rank_of(task_score)
  if not rank then
    redis.call('ZREM', waiting, line)
    if not rival then
      drop_empty_list(descriptor.limits[limit_index], queue, true)
    end
  elseif rank ~= rank_of(score) then
    enter_list(waiting, line, descriptor)
  elseif rival or virtual_time_of(score) >= TIME_MODULUS - WRAP_MARGIN then
    put_line(waiting, line, rank, virtual_time_of(score) + dispatches * stride_of(descriptor))
  end
end
