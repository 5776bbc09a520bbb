-- serve_queue.lua: takes tasks from the waiting lists of a queue that are due.
-- uses: claim_call, serve_line, fair_service
-- uses rarely: repair

-- Serve a waiting list until its limit has no room left or no line waits. If the worker has not enough processes for
-- that, the list is due now: other lists that were due before come first the next time, and forecasts read since when
-- it has had room.
local function serve_list(queue, waiting)
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

local function serve_queue(queue)
  while #call.taken < call.wanted and call.visits > 0 do
    local waiting = redis.call('ZRANGE', queue[DUE], '-inf', format_integer(now + booking_horizon()), 'BYSCORE',
                               'LIMIT', 0, 1)[1]
    if not waiting then
      break
    end
    serve_list(queue, waiting)
  end
end
