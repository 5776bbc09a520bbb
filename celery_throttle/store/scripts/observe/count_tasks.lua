-- count_tasks.lua: counts the tasks in the lines of a queue.
-- KEYS  1-4  the queue's lines, messages, due, polls
-- Reply how many

return redis.call('HLEN', KEYS[2])
