-- define.lua: put definitions of limits in force.
-- uses: decide
--
-- KEYS  1            hash: definitions of limits
--       then per limit: state and entries of the limit, or of the key defined
-- ARGV  1            now (us), or '' for the server's clock
--       2            'code' (defaults of the code: never replace one defined at run time)
--                    | 'reset' (the default of the code again) | 'set' (defined at run time) | 'drop'
--                    | 'windows' (the windows of calendars have run out: new ones for what is in force)
--       then per limit: name, field, definition (packed by definitions.py; '' with 'drop')
-- Reply {1}, or {0, index} of a limit that 'set' would change between slots and a rate: nothing was
--       done, since workers know from the code whether there is a slot to give back.
--
-- What is in use of the limit or key itself is converted at once. The keys of a limit that are not
-- defined themselves may be many: their states are converted when they are read, by what the
-- definition says of the one before it.

local given, mode = ARGV[1], ARGV[2]
local now = clock(given)

local function in_force(name, field)
  local found = redis.call('HMGET', KEYS[1], field, name)
  local definition = found[1] or found[2]
  return definition and parse(definition)
end

-- Whether two limits admit the same, however their rates are written.
local function is_same(one, other)
  if one.tag ~= other.tag or one.burst ~= other.burst or one.p ~= other.p or one.q ~= other.q then
    return false
  end
  local function rest(limit)
    local text = NUMBERS + 24 + 8 * limit.numbers
    return string.sub(limit.packed, NUMBERS + 24, text - 1), string.sub(limit.packed, text)
  end
  local numbers, text = rest(one)
  local other_numbers, other_text = rest(other)
  -- The windows of a calendar that are known depend on when somebody looked.
  if one.kind == 'f' and one.number(1) == 0 then
    return text == other_text
  end
  return numbers == other_numbers
end

local function put(field, packed, old, origin)
  local since, old_since = now, old and old.since or now
  if old and is_same(old, parse(struct.pack('<Bdd', origin, 0, 0) .. packed)) then
    -- The same limit: what is in use under it needs no conversion.
    since, old_since = old.since, old.old_since
  end
  redis.call('HSET', KEYS[1], field, struct.pack('<Bdd', origin, since, old_since) .. packed)
end

local function convert_state(ref, old)
  ref.limit = in_force(ref.name, ref.field)
  local state = old and ref.limit and redis.call('GET', ref.state)
  if state then
    settle_state(ref, state, now, given)
    ref.limit.family.write(ref, now, given)
  end
end

local CODE, SET = string.byte('c'), string.byte('s')
local refs = {}
for i = 1, (#KEYS - 1) / 2 do
  local name, field, packed = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local old, new = in_force(name, field), packed ~= '' and string.sub(packed, 1, 1)
  if mode == 'set' and old and old.kind ~= new and (old.kind == 'c' or new == 'c') then
    return { 0, i }
  end
  refs[i] = { name = name, field = field, packed = packed, old = old, state = KEYS[2 * i],
              entries = KEYS[2 * i + 1] }
end
for _, ref in ipairs(refs) do
  local own = redis.call('HGET', KEYS[1], ref.field)
  local origin = own and string.byte(own)
  if mode == 'drop' then
    redis.call('HDEL', KEYS[1], ref.field)
    convert_state(ref, ref.old)
  elseif mode == 'windows' then
    if own then
      put(ref.field, ref.packed, ref.old, origin)
    end
  elseif mode ~= 'code' or origin ~= SET then
    put(ref.field, ref.packed, ref.old, mode == 'set' and SET or CODE)
    convert_state(ref, ref.old)
  end
end
return { 1 }
