-- decide.lua: the atomic decision. Reads all limits of a call, then takes from all or none.
-- uses: algorithms
--
-- Library. Every script that decides gives it, per limit, a table of
--   name, field        the limit's field in the hash of definitions, and that of its key
--   state              key: the algorithm's packed state
--   pause, key_pause   keys: until when (us) the whole limit, or this key of it, is paused
--   backlog            key: how many tasks wait in lines at this limit and key
--   cost               units to take

-- The server's clock in microseconds, unless the caller passes a time (tests do).
local function clock(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- With a time of the caller's own, real time must not expire what the caller still counts on.
local function expiry(us, given)
  local ms = math.max(1, math.ceil(us / 1000))
  if given ~= '' then
    ms = ms + 3600000
  end
  return string.format('%.0f', ms)
end

-- A definition is text: origin ('code', or 'set' for one defined at run time), algorithm, p, q,
-- burst, since when (us) it is in force, and since when the definition before it was.
local function parse(definition)
  local origin, algorithm, p, q, burst, since, old_since = string.match(definition,
    '^(%a+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  return { origin = origin, algorithm = algorithms[algorithm], p = tonumber(p), q = tonumber(q),
           burst = tonumber(burst), since = tonumber(since), old_since = old_since }
end

-- Reads definitions and state of all refs, two calls however many there are. Sets on each ref
-- `limit`, `used` (ticks), `paused` (us from now), `waiting` (tasks in lines). Returns nil, or
-- the index of the first ref whose limit nobody has defined. Writes a state only if the clock has
-- stepped back, see `used_at`.
local function look(limits, refs, now, given)
  local fields, keys = {}, {}
  for i, ref in ipairs(refs) do
    fields[2 * i - 1], fields[2 * i] = ref.name, ref.field
    keys[4 * i - 3], keys[4 * i - 2] = ref.state, ref.backlog
    keys[4 * i - 1], keys[4 * i] = ref.pause, ref.key_pause
  end
  local definitions = redis.call('HMGET', limits, unpack(fields))
  local values = redis.call('MGET', unpack(keys))
  local parsed = {}
  for i, ref in ipairs(refs) do
    local definition = definitions[2 * i] or definitions[2 * i - 1]
    if not definition then
      return i
    end
    -- Keys of one limit mostly share its definition.
    parsed[definition] = parsed[definition] or parse(definition)
    ref.limit = parsed[definition]
    local state = values[4 * i - 3]
    ref.used = 0
    if state then
      local used, anew = used_at(ref.limit, state, now)
      ref.used = used
      if anew then
        redis.call('SET', ref.state, pack_state(ref.limit, used, now),
                   'PX', expiry(used / ref.limit.q, given))
      end
    end
    ref.waiting = tonumber(values[4 * i - 2] or 0)
    local pause = math.max(tonumber(values[4 * i - 1] or 0), tonumber(values[4 * i] or 0))
    ref.paused = math.max(0, pause - now)
  end
end

-- Microseconds until `cost` would pass, rounded up; -1 when it is more than the limit can hold.
local function wait_of(ref)
  local limit = ref.limit
  if ref.cost > limit.burst then
    return -1
  end
  -- In this order no sum leaves what a double holds exactly.
  local over = ref.used - limit.burst * limit.p + ref.cost * limit.p
  if over <= 0 then
    return ref.paused
  end
  -- Whole division: over / q may round to the wrong side of an integer.
  local rest = over % limit.q
  if rest > 0 then
    over = over + limit.q - rest
  end
  return math.max(ref.paused, over / limit.q)
end

-- The wait of the whole set and the index of the limit that binds (0 when none does).
local function decide(refs)
  local wait, bound = 0, 0
  for i, ref in ipairs(refs) do
    local own = wait_of(ref)
    if own < 0 then
      return -1, i
    end
    if own > wait then
      wait, bound = own, i
    end
  end
  return wait, bound
end

-- Takes `times` the cost from every ref for a start at `at` (us, not before now).
local function take(refs, now, at, given, times)
  for _, ref in ipairs(refs) do
    local limit = ref.limit
    local used = math.max(0, ref.used - (at - now) * limit.q) + ref.cost * limit.p * times
    local lasts = at - now + math.ceil(used / limit.q)
    redis.call('SET', ref.state, pack_state(limit, used, at), 'PX', expiry(lasts, given))
    ref.used = used + (at - now) * limit.q
  end
end

-- Whole units that could pass now, and microseconds until the limit is full again.
local function left(ref)
  local limit = ref.limit
  local free = math.max(0, limit.burst * limit.p - ref.used)
  local units = ref.paused > 0 and 0 or math.floor(free / limit.p)
  return units, math.max(ref.paused, math.ceil(ref.used / limit.q))
end

-- refs out of flat lists: five keys and three arguments each, from the given offsets on.
local function read_refs(count, key, arg)
  local refs = {}
  for i = 1, count do
    refs[i] = {
      state = KEYS[key], backlog = KEYS[key + 1], pause = KEYS[key + 2], key_pause = KEYS[key + 3],
      name = ARGV[arg], field = ARGV[arg + 1], cost = tonumber(ARGV[arg + 2]),
      limit = false, used = 0, waiting = 0, paused = 0,
    }
    key, arg = key + 4, arg + 3
  end
  return refs
end
