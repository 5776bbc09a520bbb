-- task_score.lua: the score of a task that joins the end of its line. Within a rank tasks are ordered by age, in
-- units of 64 us (45 bits). The clock may stand still or be set back, so the score is above that of the last task of
-- the rank.
-- uses: clock, scores

local function next_task_score(line, rank)
  local from, to = rank * RANK_SPAN, (rank + 1) * RANK_SPAN - 1
  local last = redis.call('ZRANGE', line, format_integer(to), format_integer(from),
                          'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
  local score = from + math.floor(now / 64)
  return last[2] and math.max(score, tonumber(last[2]) + 1) or score
end
