-- decide.lua: the atomic decision. Reads all limits of a call, then takes from all or none.
-- uses: definition, pauses
-- uses rarely: key_cap
--
-- Library. Twin: `celery_throttle/algorithms/local.py`. A ref is a name and key: a table of
--   state       key: since when the definition is in force, then the part of each limit
--   entries     key: what a limit keeps besides, see `sliding_log.lua` and `slots.lua`
--   has_key     whether it is a key of its name, and not the name itself
--   cost        millionths of a unit to take of each of its limits
-- and, once it was looked at,
--   limits      those of its name
--   since, old_since, older_since    of their definition
--   max_keys, max_waiting    of it, if it has one of them
--   crowd       key: which keys of the name are in use, if it has `max_keys`
--   paused      microseconds from now
--   adopted     whether its state was not one to go on with as it was
--   at          when what was taken starts

-- Keeps the state of a ref.
local function write(ref, now, given)
  local limits = ref.limits
  local state, lasts = limits[1].algorithm.write(limits[1], now, given)
  for i = 2, #limits do
    local part, longer = limits[i].algorithm.write(limits[i], now, given)
    state, lasts = state .. part, math.max(lasts, longer)
  end
  redis.call('SET', ref.state, struct.pack('<d', ref.since) .. state, 'PX', expiry(lasts, given))
  if ref.crowd then
    key_cap().use(ref, now, given)
  end
end

-- What is in use by the parts of a state, slots aside: their holders stay as they are. And where the part of
-- slots begins, if there is one.
local function in_use_by(state, at)
  local found, from, slots = {}, 9, false
  while from < #state do
    local tag, size = struct.unpack('<BH', state, from)
    if tag == SLOTS then
      slots = from
    else
      found[#found + 1] = algorithm_of(tag, true).in_use(state, from, at)
    end
    from = from + size
  end
  return found, slots
end

-- A state of other limits than those now in force, see `current` in definition.py.
local function carry_over(ref, state, since, now)
  local before = since
  if since == ref.old_since then
    before = ref.since
  elseif since == ref.older_since then
    before = ref.old_since
  end
  local found, slots = in_use_by(state, math.min(before, now))
  local place, moved = 0, false
  for _, limit in ipairs(ref.limits) do
    local algorithm = algorithm_of(limit.tag, true)
    if not algorithm.read(limit, limit.tag == SLOTS and slots and state, slots, now) then
      algorithm.move_back(limit, state, slots, now)
      moved = true
    end
    if limit.tag ~= SLOTS and #found > 0 then
      place = place + 1
      local in_use = math.min(found[place] or math.max(unpack(found)), limit.burst * MILLION)
      if in_use > 0 then
        algorithm.fill(limit, in_use, math.min(ref.since, now), now)
      end
    end
  end
  return moved or now < math.max(ref.since, before)
end

-- Whether a state has a part for each limit, by its numbers.
local function is_of(ref, state)
  local from = 9
  for _, limit in ipairs(ref.limits) do
    local tag, size = 0, 0
    if from < #state then
      tag, size = struct.unpack('<BH', state, from)
    end
    if tag ~= limit.tag or not algorithm_of(tag, true).is_of(limit, state, from) then
      return false
    end
    from = from + size
  end
  return from > #state
end

-- Where reading a state is not all there is to do: it is of other limits, or was written before the
-- clock stepped back.
local function adopt(ref, state, now, given)
  local since, keep = struct.unpack('<d', state), false
  ref.adopted = true
  if since ~= ref.since or not is_of(ref, state) then
    keep = carry_over(ref, state, since, now)
  else
    local from = 9
    for _, limit in ipairs(ref.limits) do
      algorithm_of(limit.tag, true).move_back(limit, state, from, now)
      from = from + select(2, struct.unpack('<BH', state, from))
    end
    keep = true
  end
  if keep then
    write(ref, now, given)
  end
end

-- Reads a state; tells if that is all there is to do.
local function read(ref, state, now)
  local limits, from = ref.limits, 9
  local simple = not state or struct.unpack('<d', state) == ref.since
  for i = 1, #limits do
    local limit = limits[i]
    if not state then
      limit.algorithm.read(limit, false, 0, now)
    elseif simple and from < #state then
      local tag, size = struct.unpack('<BH', state, from)
      simple = tag == limit.tag and limit.algorithm.read(limit, state, from, now)
      from = from + size
    else
      return false
    end
  end
  return simple and (not state or from > #state)
end

-- Looks at all refs: `definitions` are two values a ref (`fields`), for its key and for its name, of
-- the hash of definitions; `values` three a ref (`keys`), of its state and of the keys of the pauses of the
-- name, and of this key of it; `names` of these keys are as many, from place `from` on. Where no ref has a
-- key it is one less. Returns nil, or the index of the first ref whose limits nobody has defined, or whose
-- windows are known no longer. Writes a state or a pause only if the clock has stepped back.
local function look(refs, definitions, fields, values, keys, names, from_name, now, given)
  for i = 1, #refs do
    local ref, packed = refs[i], definitions[fields * (i - 1) + 1] or definitions[fields * i]
    if not packed then
      return i
    end
    local _, since, old_since, older_since, max_keys, max_waiting, count = struct.unpack(HEAD, packed)
    ref.since, ref.old_since, ref.older_since = since, old_since, older_since
    if max_keys > 0 or max_waiting > 0 then
      ref.max_keys, ref.max_waiting = max_keys, max_waiting
    end
    local limits, from = { false }, FIRST
    for place = 1, count do
      limits[place], from = parse(packed, from, ref)
      local tag = limits[place].tag
      if tag == FIXED_WINDOW and limits[place].algorithm.is_stale(limits[place], now) then
        return i
      elseif tag == SLIDING_LOG then
        -- Each log has a zset of its own, slots have the one without a number.
        limits[place].entries = ref.entries .. '+' .. place
      end
    end
    ref.limits = limits
    if max_keys > 0 and ref.has_key then
      ref.crowd = string.match(packed, '%z(.*)', from)
    end
    local first = keys * (i - 1) + 1
    local state, pause, key_pause = values[first], values[first + 1], values[keys * i]
    if not read(ref, state, now) then
      adopt(ref, state, now, given)
    end
    if pause or key_pause then
      local name = from_name + first - 1
      ref.paused = math.max(paused_for(names[name + 1], pause, now, given),
                            paused_for(names[name + keys - 1], key_pause, now, given))
    end
  end
end

-- The wait (us) of the whole set, the ref that binds (0 when none does) and which limit of it; -1 when
-- a cost is more than a limit can hold. Sets `held` of the refs: whether all slots of one are held,
-- which cannot be booked ahead, since a lease that ends may be renewed.
local function decide(refs, now, lined)
  local wait, bound, limit_bound = 0, 0, 1
  refs.held = false
  for i = 1, #refs do
    local ref = refs[i]
    local limits = ref.limits
    if ref.paused > wait then
      wait, bound, limit_bound = ref.paused, i, 1
    end
    for place = 1, #limits do
      local limit = limits[place]
      if limit.cost > limit.burst * MILLION and limit.tag ~= SLOTS then
        return -1, i, place
      end
      local own = limit.algorithm.check(limit, now, lined)
      if own > 0 and limit.tag == SLOTS then
        refs.held = true
      end
      if own > wait then
        wait, bound, limit_bound = own, i, place
      end
    end
  end
  return wait, bound, limit_bound
end

-- Takes the cost from every ref for a start at `at` (us, not before now). It counts in what is decided after
-- it; nothing is written yet.
local function reserve(refs, now, at)
  for i = 1, #refs do
    local limits = refs[i].limits
    for place = 1, #limits do
      limits[place].algorithm.take(limits[place], now, at)
    end
  end
end

-- Keeps what was taken.
local function write_all(refs, now, given)
  for i = 1, #refs do
    write(refs[i], now, given)
  end
end

local function take(refs, now, at, given)
  reserve(refs, now, at)
  write_all(refs, now, given)
end

-- The ref for whose key there is no room, and how long that will be so; see `crowd.full`.
local function full_crowd(refs, now)
  for i = 1, #refs do
    if refs[i].crowd then
      return key_cap().full(refs, now)
    end
  end
  return 0, 0
end

-- The amount that could pass now (whole units unless `exactly`), microseconds until all is full again,
-- and the limit that has least.
local function left(ref, now, exactly)
  local limits = ref.limits
  local amount, reset, least = math.huge, ref.paused, limits[1]
  for i = 1, #limits do
    local own, full = limits[i].algorithm.left(limits[i], now, exactly)
    own = exactly and own or own - own % MILLION
    if own < amount then
      amount, least = own, limits[i]
    end
    if full > reset then
      reset = full
    end
  end
  return ref.paused > 0 and 0 or amount, reset, least
end
