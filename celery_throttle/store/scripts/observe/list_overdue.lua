-- list_overdue.lua: lists the waiting lists of a queue whose limit has room, but nobody takes the tasks.
-- uses: clock
-- KEYS  1   due of the queue
-- ARGV  1   now (us), or '' for the server's clock
--       2   for how long (us) a limit must have had room
--       3   how many waiting lists to reply at most
-- Reply {waiting list, tasks of its first lines, ...}

local reply = {}
local found = redis.call('ZRANGE', KEYS[1], '-inf', format_integer(now - ARGV[2]), 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, waiting in ipairs(found) do
  local tasks = 0
  for _, line in ipairs(redis.call('ZRANGE', waiting, 0, 19)) do
    tasks = tasks + redis.call('ZCARD', line)
  end
  reply[#reply + 1], reply[#reply + 2] = waiting, tasks
end
return reply
