-- record_totals.lua: records the totals of limits, so that what was counted in a time can be read later.
-- A record is text: when (us), how many tasks waited, how many of them a pause held up, then counters and their totals;
-- see `counters.lua`. Between two records the totals have grown steadily, as far as anybody knows. Recent records are 10 s apart and cover a quarter of
-- an hour; the others are 10 minutes apart and cover a week. A limit whose totals do not change gets no records.
-- KEYS  1   set: names of limits
--       2   string: when (us) the last records were made, and when before that
--       then heads of the keys `backlog`, `pause` and `paused_keys`; last: head of the totals
-- ARGV  2   cursor: '0' at first, then the one that the last call replied
--       3   the shortest time (us) between two records
-- Reply cursor of the next call; '0' at the end, and if the last records are recent.

local RECENT, RECENT_KEPT_MS, OTHERS, OTHERS_KEPT_MS = 100, 1200000, 1010, 691200000
local OTHERS_INTERVAL = 600000000

-- When the records before this call were made.
local function begin(cursor)
  local found = redis.call('GET', KEYS[2])
  local last, before = string.match(found or '0 0', '^(%d+) (%d+)$')
  if cursor ~= '0' then
    return tonumber(before)
  elseif tonumber(last) <= now and now - last < tonumber(ARGV[3]) then
    return nil
  end
  redis.call('SET', KEYS[2], format_integer(now) .. ' ' .. last, 'PX', RECENT_KEPT_MS)
  return tonumber(last)
end

local function totals_of(name)
  local found = redis.call('HGETALL', KEYS[#KEYS] .. name)
  local counters = {}
  for i = 1, #found, 2 do
    if found[i] ~= 'last_api_refusal' then -- the only text, see `counters.lua`
      counters[#counters + 1] = found[i] .. ' ' .. found[i + 1]
    end
  end
  return counters[1] and ' ' .. table.concat(counters, ' ')
end

local function last_of(key)
  return redis.call('LRANGE', key, -1, -1)[1]
end

-- Append a record, unless the last one says the same. Without any, `first` is what is known of the time before.
local function append(key, about, before, first, most, kept_ms)
  local last = last_of(key)
  if not last then
    redis.call('RPUSH', key, first)
    last = first
  end
  local last_at, last_about = string.match(last, '^(%d+)(.*)$')
  if last_about == about then
    redis.call('PEXPIRE', key, kept_ms)
    return
  end
  if before > tonumber(last_at) then
    redis.call('RPUSH', key, format_integer(before) .. last_about) -- until then nothing had changed
  end
  redis.call('RPUSH', key, format_integer(now) .. about)
  redis.call('LTRIM', key, -most, -1)
  redis.call('PEXPIRE', key, kept_ms)
end

local before = begin(ARGV[2])
if not before then
  return '0'
end
local is_tenth_minute = math.floor(before / OTHERS_INTERVAL) < math.floor(now / OTHERS_INTERVAL)
local found = redis.call('SSCAN', KEYS[1], ARGV[2], 'COUNT', 100)
for _, name in ipairs(found[2]) do
  local totals = totals_of(name)
  if totals then
    local key = KEYS[#KEYS] .. name
    local waiting, paused = count_backlog(name, key, KEYS[3], KEYS[4], KEYS[5])
    local about = ' ' .. format_integer(waiting) .. ' ' .. format_integer(paused) .. totals
    local in_week = last_of(key .. '/week')
    -- A limit without records is new: its totals were 0.
    local first = in_week or format_integer(before > 0 and before or now - ARGV[3]) .. ' 0 0'
    append(key .. '/recent', about, before, first, RECENT, RECENT_KEPT_MS)
    if is_tenth_minute or not in_week then
      append(key .. '/week', about, before - before % OTHERS_INTERVAL, first, OTHERS, OTHERS_KEPT_MS)
    end
    redis.call('PEXPIRE', key, OTHERS_KEPT_MS)
  end
end
return found[1]
