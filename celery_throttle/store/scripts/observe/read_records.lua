-- read_records.lua: reads the records of a limit since a time, and its totals now; see `record_totals.lua`.
-- KEYS  1   list: records
--       2   when the last records were made
--       3   head of the keys `backlog`
--       4   head of the totals
-- ARGV  2   name of the limit
--       3   since when (us from now, backwards)
-- Reply {now (us), when (us) the last records were made, tasks that wait, {counter, total, ...}, {record, ...}}; the first record is the last one before.

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
local waiting = tonumber(redis.call('GET', KEYS[3] .. name) or 0)
  + (redis.call('ZSCORE', KEYS[#KEYS] .. name .. '/keys', '') or 0)
local recorded = string.match(redis.call('GET', KEYS[2]) or '0', '^%d+')
return { format_integer(now), recorded, waiting, redis.call('HGETALL', KEYS[#KEYS] .. name),
         redis.call('LRANGE', KEYS[1], math.max(0, low - 1), -1) }
