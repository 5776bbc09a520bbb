-- open_record.lua: writes what is missing in the record of a fan-out, see `fan_out.lua`. `keep` is how long (us) it
-- is kept after no task waits, `pause` the key that pauses it. Returns the numbers of the queues, by queue.
-- uses: clock, line_data

local function open_record(record, keep, pause, queues)
  for _, field in ipairs({ 'old_at', 'new_at' }) do
    redis.call('HSETNX', record, field, format_integer(now))
  end
  for _, field in ipairs({ 'waiting', 'sent', 'old_ended', 'new_ended' }) do
    redis.call('HSETNX', record, field, 0)
  end
  redis.call('HSET', record, 'keep', keep, 'pause', pause)
  local numbers, known = {}, record .. ':queues'
  for _, queue in ipairs(queues) do
    local number = redis.call('HGET', known, queue[LINES])
    if not number then
      number = format_integer(redis.call('HLEN', known) / 2)
      redis.call('HSET', known, queue[LINES], number, number, cmsgpack.pack(queue))
    end
    numbers[queue] = number
  end
  return numbers
end
