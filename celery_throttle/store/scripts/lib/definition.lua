-- definition.lua: what is known of the limits of a name.
-- uses: tags, meters
-- uses rarely: algorithm_registry
--
-- Library. A definition is packed by `celery_throttle/store/definitions.py`: how many keys may be in use, how
-- many tasks may wait (0 for any number), how many limits; for each limit its tag, how many numbers,
-- and these: burst, p, q and those of the algorithm; then the limits as text; then, if keys are
-- counted, a zero and the name of the crowd, see `key_cap.lua`. In front of it `define.lua` puts the
-- origin ('c' of the code, 's' set at run time), since when (us) it is in force, and since when the two
-- definitions before it were.
--
-- An algorithm is a table of functions of a limit at the time `now`:
--   read(limit, state, from, now)   reads its part of the state, or false; tells if that is all there is
--                                   to do
--   check(limit, now, lined)        microseconds until the cost would pass; `lined`: for a task, which
--                                   can wait in a line
--   take(limit, now, at)            takes the cost for a start at `at`, not before now
--   write(limit, now, given)        its part of the state, and microseconds for which that matters
--   left(limit, now, exactly)       amount that could pass now (whole units unless `exactly`), and
--                                   microseconds until nothing is in use
-- and for few decisions
--   is_of(limit, state, from)       whether a part was written with the numbers of the limit
--   move_back(limit, state, from, now)    reads as if it had been written now at the latest
--   in_use(state, from, at)         amount in use at a time, never too little
--   fill(limit, amount, at, now)    as if nothing but an amount had been taken, at `at`
--   mark(limit, now)                two numbers that tell the last take from others, for
--   settle(limit, mark, more, cost, actual, now)    whether anything has changed
-- Meters and fixed windows have one or two more.

local HEAD, LIMIT, PACKED, FIRST = '<BdddddB', '<BHddd', 26, 43

local made = {}

-- The algorithm of a tag; of a meter only what most decisions need, unless `all` of it is asked for.
local function algorithm_of(tag, all)
  if tag <= LEAKY_QUEUE and not all then
    return meters
  end
  made[tag] = made[tag] or algorithm_registry()[tag]()
  return made[tag]
end

-- The limit of a definition that begins at a place in it; and where the next one begins.
local function parse(packed, from, ref)
  local tag, count, burst, p, q = struct.unpack(LIMIT, packed, from)
  return {
    tag = tag, burst = burst, p = p, q = q, algorithm = algorithm_of(tag), packed = packed, from = from,
    numbers = count - 3, cost = ref.cost, entries = ref.entries,
    used = 0, at = 0, began = 0, refunds = '', longest = false, -- so that the table need not grow
  }, from + 3 + 8 * count
end
