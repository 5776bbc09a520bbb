-- decide.lua: the atomic decision. Reads all limits of a call, then takes from all or none.
-- uses: definition
--
-- Library. Twin: `celery_throttle/reference/local.py`. Every script that decides gives it, per limit,
-- a table of
--   name, field        the limit's field in the hash of definitions, and that of its key
--   state, entries     keys: what the algorithm remembers
--   pause, key_pause   keys: until when (us) the whole limit, or this key of it, is paused
--   cost               millionths of a unit to take
--   holder, lease      who takes a slot, and for how long (us) at first; only where there are any

-- The state under the limit now in force, see `current` in local.py.
local function settle_state(ref, state, now, given)
  local limit, family = ref.limit, ref.limit.family
  if not state then
    family.empty(ref)
    return
  end
  local tag, since = struct.unpack('<Bd', state)
  if tag == limit.tag and since == limit.since and family.read(ref, state) then
    if family.written(ref) > now + FARTHEST then
      family.move_back(ref, now)
      family.write(ref, now, given)
    end
    return
  end
  local kind = string.char(tag)
  local before = since == limit.old_since and limit.since or limit.old_since
  local in_use = family_of(kind).in_use(kind, state, math.min(before, now))
  family.empty(ref)
  if in_use > 0 then
    local at = math.min(limit.since, now)
    family.take(ref, math.min(in_use, limit.burst * MILLION), at, at)
    if now < limit.since then
      family.write(ref, now, given)
    end
  end
end

-- Reads definitions and states of all refs, two calls however many there are. Sets on each ref
-- `limit`, `paused` (us from now) and what its algorithm keeps. Returns nil, or the index of the first
-- ref whose limit nobody has defined, or whose windows are known no longer. Writes a state only if
-- the clock has stepped back.
local function look(limits, refs, now, given)
  local fields, keys = {}, {}
  for i, ref in ipairs(refs) do
    fields[2 * i - 1], fields[2 * i] = ref.field, ref.name
    keys[3 * i - 2], keys[3 * i - 1], keys[3 * i] = ref.state, ref.pause, ref.key_pause
  end
  local definitions = redis.call('HMGET', limits, unpack(fields))
  local values = redis.call('MGET', unpack(keys))
  local parsed = {}
  for i, ref in ipairs(refs) do
    local definition = definitions[2 * i - 1] or definitions[2 * i]
    if not definition then
      return i
    end
    -- Keys of one limit mostly share its definition.
    local limit = parsed[definition]
    if not limit then
      limit = parse(definition)
      parsed[definition] = limit
    end
    ref.limit = limit
    if limit.kind == 'f' and limit.family.is_stale(limit, now) then
      return i
    end
    settle_state(ref, values[3 * i - 2], now, given)
    local pause, key_pause = values[3 * i - 1], values[3 * i]
    ref.paused = 0
    if pause or key_pause then
      ref.paused = math.max(0, tonumber(pause or 0) - now, tonumber(key_pause or 0) - now)
    end
  end
end

-- Microseconds until a ref's cost would pass, rounded up; -1 when it is more than the limit can hold.
local function wait_of(ref, now, lined)
  local limit = ref.limit
  if ref.cost > limit.burst * MILLION and limit.kind ~= 'c' then
    return -1
  end
  return math.max(ref.paused, limit.family.wait(ref, ref.cost, now, lined))
end

-- The wait of the whole set and the index of the limit that binds (0 when none does). `lined`: for a
-- task, which can wait in a line.
local function decide(refs, now, lined)
  local wait, bound = 0, 0
  for i, ref in ipairs(refs) do
    local own = wait_of(ref, now, lined)
    if own < 0 then
      return -1, i
    end
    if own > wait then
      wait, bound = own, i
    end
  end
  return wait, bound
end

-- Takes the cost from every ref for a start at `at` (us, not before now).
local function take(refs, now, at, given)
  for _, ref in ipairs(refs) do
    local family = ref.limit.family
    family.take(ref, ref.cost, now, at)
    family.write(ref, now, given)
  end
end

-- The amount that could pass now, and microseconds until the limit is full again.
local function left(ref, now, exact)
  local amount, reset = ref.limit.family.left(ref, now, exact)
  return ref.paused > 0 and 0 or amount, math.max(ref.paused, reset)
end

-- refs out of flat lists, from the given offsets on: four keys each (five with the backlog) and three
-- arguments.
local function read_refs(count, key, arg, stride)
  local refs = {}
  for i = 1, count do
    refs[i] = {
      state = KEYS[key], entries = KEYS[key + 1], pause = KEYS[key + 2], key_pause = KEYS[key + 3],
      name = ARGV[arg], field = ARGV[arg + 1], cost = tonumber(ARGV[arg + 2]),
    }
    if stride == 5 then
      refs[i].backlog = KEYS[key + 4]
    end
    key, arg = key + stride, arg + 3
  end
  return refs
end

-- Sets on each ref `waiting`: how many tasks wait in lines at this limit and key.
local function read_backlogs(refs)
  local keys = {}
  for i, ref in ipairs(refs) do
    keys[i] = ref.backlog
  end
  for i, waiting in ipairs(redis.call('MGET', unpack(keys))) do
    refs[i].waiting = tonumber(waiting or 0)
  end
end
