-- list_changes.lua: lists the changes of limits, the newest first; see `changes.lua`.
-- KEYS  1   stream: changes
-- ARGV  1   id of the change to begin before; '+' for the newest
--       2   how many at most
-- Reply {{id, {field, value, ...}}, ...}

return redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
