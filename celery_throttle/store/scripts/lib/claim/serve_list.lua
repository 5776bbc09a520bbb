-- serve_list.lua: takes tasks from a waiting list that is due.
-- uses: claim_call, serve_line, fair_service
-- uses rarely: repair
-- Returns a function of the queue and its waiting list. It serves the list until its limit has no room left or no line
-- waits. If the worker has not enough processes for that, the list is due now: other lists that were due before come
-- first the next time, and forecasts read since when it has had room.

return function(queue, waiting)
  while #call.taken < call.wanted and call.visits > 0 do
    local line, score, rival = next_line(waiting)
    if not line then
      if redis.call('ZREM', queue[DUE], waiting) == 1 then
        repair()(queue)
      end
      return
    end
    call.visits = call.visits - 1
    if serve_line(queue, waiting, line, score, rival) then
      return
    end
  end
  redis.call('ZADD', queue[DUE], 'XX', 'GT', format_integer(now), waiting)
end
