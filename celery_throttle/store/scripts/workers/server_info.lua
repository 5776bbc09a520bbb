-- server_info.lua: reads the sections memory, persistence, replication and cluster of INFO.
-- KEYS  1   any key of ours: it tells a cluster which node is asked
-- Reply the text of the sections

local sections = {}
for _, name in ipairs({ 'memory', 'persistence', 'replication', 'cluster' }) do
  sections[#sections + 1] = redis.call('INFO', name)
end
return table.concat(sections, '\r\n')
