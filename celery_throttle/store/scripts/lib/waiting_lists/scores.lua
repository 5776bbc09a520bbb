-- scores.lua: the rank in a score.
--
-- A rank is 0 to 255 and comes from the priority of a task; lower ranks come first. The scores of tasks in a line and
-- of lines in a waiting list begin with 8 bits of rank. 45 bits follow: see `task_score.lua` and `fair_queue.lua`. A
-- double holds a score exactly.

local RANK_SPAN = 2 ^ 45

-- The rank of a score; nil for nil.
local function rank_of(score)
  return score and math.floor(score / RANK_SPAN)
end
