-- oldest_wait.lua: how long the first task of a line has waited.
-- uses: clock, scores

-- Microseconds that the first task of a line has waited; nil if the line is empty. A score is the rank and the age of a
-- task, in units of 64 us; see `task_score.lua`.
local function oldest_wait(line)
  local score = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')[2]
  return score and math.floor(now - score % RANK_SPAN * 64)
end
