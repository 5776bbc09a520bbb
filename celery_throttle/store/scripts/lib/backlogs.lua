-- backlogs.lua: how many tasks wait at a limit with all its keys, and how many of them a pause holds up.

-- The most paused keys that are looked at.
local MAX_PAUSED_KEYS = 1000

-- Returns how many tasks wait, and how many of them wait for a limit or a key that is paused.
--   name      of the limit
--   totals    of the limit; see `counters.lua`
--   backlogs, pauses, paused_keys   heads of keys; behind them follows the name
local function count_backlog(name, totals, backlogs, pauses, paused_keys)
  local by_key = totals .. '/keys'
  local waiting = tonumber(redis.call('GET', backlogs .. name) or 0) + (redis.call('ZSCORE', by_key, '') or 0)
  local pause = redis.call('GET', pauses .. name)
  if waiting == 0 or pause and tonumber(string.match(pause, '^%d+')) > now then
    return waiting, waiting
  end
  local paused = 0
  for _, key in ipairs(redis.call('ZRANGE', paused_keys .. name, '(' .. format_integer(now), '+inf', 'BYSCORE',
                                  'LIMIT', 0, MAX_PAUSED_KEYS)) do
    paused = paused + (redis.call('ZSCORE', by_key, key) or 0)
  end
  return waiting, paused
end
