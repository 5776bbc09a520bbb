-- consume.lua: which of the queues that a worker consumes hold tasks under the names of earlier versions.
--
-- KEYS  for each queue: key `lines` of its earlier name
-- Reply {1 if there are any, else 0; ...}

local reply = {}
for i, lines in ipairs(KEYS) do
  reply[i] = redis.call('EXISTS', lines)
end
return reply
