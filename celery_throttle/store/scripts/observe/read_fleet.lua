-- read_fleet.lua: reads how many workers live, which queues with tasks they consume, and which tasks pass no gate.
-- KEYS  1   zset: live workers
--       2-3 zsets `consumed` and `temporary`, see `heartbeat.lua`
--       4   hash: tasks in quarantine
--       5   length of all outages, see `count_outage.lua`
--       6   zset: tasks whose starts do not pass the gate, see `note_ungated.lua`
-- ARGV  2   for how long (us) a queue counts as consumed after a worker has reported that
-- Reply {now (us), live workers, tasks in quarantine, {key `lines` of a queue, '1' if it is consumed, else '0', ...},
--        for how long (us) workers were in outage mode; {task whose starts do not pass the gate, ...}}

local queues, since = {}, now - ARGV[2]
for key = 2, 3 do
  local found = redis.call('ZRANGE', KEYS[key], 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do
    queues[#queues + 1], queues[#queues + 2] = found[i], tonumber(found[i + 1]) > since and '1' or '0'
  end
end
return { format_integer(now), redis.call('ZCOUNT', KEYS[1], '(' .. format_integer(now), '+inf'),
         redis.call('HLEN', KEYS[4]), queues, tonumber(redis.call('GET', KEYS[5]) or 0),
         redis.call('ZRANGE', KEYS[6], 0, -1) }
