-- definition.lua: what is known of a limit.
-- uses: meters, windows, log, slots
--
-- Library. A definition is packed by `celery_throttle/definitions.py`: a tag, how many numbers, the
-- numbers (burst, p, q and those of the algorithm), the limit as text. In front of it `define.lua`
-- puts the origin ('c' of the code, 's' set at run time), since when (us) it is in force, and since
-- when the definition before it was.

local HEAD, NUMBERS = '<BddBHddd', 21

local makers = {
  g = make_meters, t = make_meters, l = make_meters, q = make_meters,
  f = make_fixed_window, w = make_sliding_window, s = make_sliding_log, c = make_slots,
}
local families = {}

local function family_of(kind)
  -- Made when it is needed: a script is read from its first line at each call.
  local maker = makers[kind]
  families[maker] = families[maker] or maker()
  return families[maker]
end

local function parse(packed)
  local origin, since, old_since, tag, count, burst, p, q = struct.unpack(HEAD, packed)
  local kind = string.char(tag)
  local limit = { origin = origin, since = since, old_since = old_since, tag = tag, kind = kind,
                  packed = packed, burst = burst, p = p, q = q, numbers = count - 3,
                  family = family_of(kind) }
  -- The numbers of the algorithm.
  function limit.number(i)
    return (struct.unpack('<d', packed, NUMBERS + 16 + 8 * i))
  end
  return limit
end
