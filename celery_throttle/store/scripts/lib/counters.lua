-- counters.lua: counts what becomes of requests and tasks, by the name of a limit.
-- KEYS  last  head of the names of the totals: with the name of a limit behind it, a hash: counter -> total
-- `celery_throttle/observe/totals.py` lists the counters. A total only grows. It begins anew if nobody has recorded
-- it for as long as it is kept, see `record_totals.lua`.

-- For how long (ms) totals are kept: eight days.
local TOTALS_KEPT_MS = 691200000

-- The field beside the counters that is a text, of the last refusal by an API: when (us), a space, and JSON of the key
-- and the task that had sent the request. No record has it. Twin: `observe/totals.py`.
local LAST_API_REFUSAL = 'last_api_refusal'

-- The name for which the lines of paused fan-outs wait. It has no limits, only pauses: one for each fan-out, by a key of
-- the name. It is never defined, and nothing is counted for it. Twin: `FAN_OUT_NAME` in `celery_throttle/store/keys.py`.
local FAN_OUT_NAME = '@fan-out'

-- A call must not fail because of what it counts, so errors are ignored: a server that is out of memory refuses.
local function increase_total(name, counter, amount)
  local totals = KEYS[#KEYS] .. name
  if name ~= FAN_OUT_NAME and redis.pcall('HINCRBY', totals, counter, amount) == amount then
    redis.pcall('PEXPIRE', totals, TOTALS_KEPT_MS)
  end
end

-- Write a text beside the totals of a limit. They are there, so that it expires with them.
local function note_in_totals(name, field, text)
  redis.pcall('HSET', KEYS[#KEYS] .. name, field, text)
end

-- Increase the same total of each limit of a descriptor. Surplus tasks were counted when they left their line.
local function increase_totals(descriptor, counter, amount)
  for _, limit_keys in ipairs(descriptor.limits[0] and {} or descriptor.limits) do
    increase_total(limit_keys[NAME], counter, amount)
  end
end
