-- read_records.lua: reads the records of a limit since a time, and its totals now; see `record_totals.lua`.
-- KEYS  1   list: records
--       2   when the last records were made
--       then heads of the keys `backlog`, `pause` and `paused_keys`; last: head of the totals
-- ARGV  2   name of the limit
--       3   since when (us from now, backwards)
-- Reply {now (us), when (us) the last records were made, tasks that wait, those of them that a pause holds up, {counter,
-- total, ...}, {record, ...}}; the first record is the last one before.

local since, name = now - ARGV[3], ARGV[2]
local low, high = 0, redis.call('LLEN', KEYS[1])
while low < high do
  local middle = math.floor((low + high) / 2)
  local record = redis.call('LRANGE', KEYS[1], middle, middle)[1]
  if tonumber(string.match(record, '^%d+')) < since then
    low = middle + 1
  else
    high = middle
  end
end
local waiting, paused = count_backlog(name, KEYS[#KEYS] .. name, KEYS[3], KEYS[4], KEYS[5])
local recorded = string.match(redis.call('GET', KEYS[2]) or '0', '^%d+')
return { format_integer(now), recorded, waiting, paused, redis.call('HGETALL', KEYS[#KEYS] .. name),
         redis.call('LRANGE', KEYS[1], math.max(0, low - 1), -1) }
