-- rejoin_line.lua: returns a task that a worker had to its position in its line, unless it waits again already. A
-- task of a cancelled fan-out ends as revoked.
-- uses: join_line, wake, fan_out_outcome, counters

local function rejoin_line(line, descriptor, id, score, row)
  local fan_out, queue = descriptor.fan_out, descriptor.queue
  if redis.call('HEXISTS', queue[MESSAGES], id) == 1 then
    return
  end
  if fan_out and redis.call('HEXISTS', fan_out, 'cancelled') == 1 then
    record_fan_out_outcome(fan_out, id, 'revoked')
    change_fan_out_waiting(fan_out, 0)
    return
  end
  join_line(line, descriptor, id, tonumber(score), row, 0, 1)
  increase_totals(descriptor, 'requeued', 1)
  wake(queue[POLLS], now)
end
