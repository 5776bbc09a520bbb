-- cancel.lua: tasks of a fan-out that wait are taken out of their lines for good, some at a time.
-- uses: lines
--
-- KEYS  1   record of the fan-out, see `fan_out.lua`
--       then per queue in which its tasks wait: lines, messages, due, asks
-- ARGV  1   now (us), or '' for the server's clock
--       2   number: of the tasks that are looked at
--       3   cursor: '0' at first, then what the last call replied
-- Reply {cursor to go on with, '0' at the end; {task id, ...} of those that were cancelled}

local now, record = clock(ARGV[1]), KEYS[1]
if redis.call('EXISTS', record) == 0 then
  return { '0', {} }
end
redis.call('HSETNX', record, 'cancelled', whole(now))
local found = redis.call('HSCAN', record .. ':' .. ARGV[2], ARGV[3], 'COUNT', 200)
local ids = {}
for i = 1, #found[2], 2 do
  local id = found[2][i]
  for key = 2, found[2][i + 1] == '' and #KEYS or 0, 4 do
    local line, at, about = line_of({ unpack(KEYS, key, key + 3) }, id)
    if line and about.fan_out == record then
      leave(line, about, at, id, now)
      close_up(line, about, at, now)
      ids[#ids + 1] = id
    end
  end
end
for _, id in ipairs(ids) do
  redis.call('HSET', record .. ':' .. ARGV[2], id, 'revoked')
  redis.call('RPUSH', record .. ':ended', id)
end
redis.call('HINCRBY', record, 'revoked', #ids)
return { found[1], ids }
