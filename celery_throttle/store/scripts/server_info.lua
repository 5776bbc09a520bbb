-- server_info.lua: what the server says of itself, as text in its INFO format.
--
-- KEYS  1   any of ours, so that a cluster knows which node is asked
-- Reply the sections memory, persistence, replication and cluster.

local said = {}
for _, section in ipairs({ 'memory', 'persistence', 'replication', 'cluster' }) do
  said[#said + 1] = redis.call('INFO', section)
end
return table.concat(said, '\r\n')
