-- definition.lua: parses the definition that is in force of a limit, or of one key of it.
-- A record in the hash of definitions begins with the definition in force; `records.lua` describes the rest:
--   B    its layer: the first letter of 'code', 'rules' or 'set'
--   d    since when (us) the definition before it was in force
--   dd   0, or when (us) the limits were used up, as others have granted them before; and when that has drained
--   II   positions of its text, and of the layers
--   dd   since when (us) it is in force, and when it ends by itself, 0 for never
-- then its numbers, which `celery_throttle/store/definitions.py` packs:
--   ddBB max-keys, max-waiting (0 for no bound), number of limits, number of shadow limits
--   then for each limit, and each shadow limit
--   BH   tag of its algorithm, count of the numbers that follow
--   d..  burst, p, q (a unit is p ticks, a microsecond q ticks), then the algorithm's own parameters
--   then with max-keys the key of the key cap, see `key_cap.lua`
--
-- An algorithm is a table of functions. `limit` is what `parse_limit` returns, with the fields that the algorithm
-- adds; times are microseconds, amounts are millionths of a unit.
--   read(limit, state, from)      read its part of a state, which begins at `from`; false for no state.
--                                 Returns whether the part can be used as it is, and whether it was
--                                 written with the numbers of this limit
--   check(limit, can_park)        microseconds until the cost passes; `can_park` for a task, which can
--                                 wait in a line
--   take(limit, at)               take the cost for a start at `at`, not before now
--   write(limit)                  its part of the state, and for how long (us) that matters
--   remaining(limit, fractional)  amount that could pass now (whole units unless `fractional`), and
--                                 microseconds until nothing is in use
-- These are required as well; few decisions call them:
--   move_back(limit, state, from) read a part as if it had been written now at the latest
--   in_use(state, from, at)       amount of a part that is in use at a time, rounded up
--   fill(limit, amount, at)       the limit as if only this amount had been taken, at a time
--   mark(limit)                   two numbers that identify the last take, for `settle`
--   settle(limit, mark, more, cost, actual)   correct the take with this mark to its actual cost. Returns
--                                 whether anything has changed
-- Meters also have `delay` and `times`, fixed windows `is_expired` and `booking_time`, adaptive limits `learn`.

-- The byte that stands for each algorithm in definitions and states. The first four are meters. Twin: TAGS in
-- `celery_throttle/store/definitions.py`.
local GCRA, TOKEN_BUCKET, LEAKY_BUCKET, LEAKY_QUEUE = 1, 2, 3, 4
local FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW, SLOTS, ADAPTIVE = 5, 6, 7, 8, 9

local LIMIT_HEAD = '<BHddd'

-- What each decision reads of the head: since, ends, max-keys, max-waiting, the number of limits and of shadow limits.
local DECISIVE_HEAD = '<ddddBB'

-- Positions in a record. What each decision reads lies together, from SINCE_AT on.
local OLD_SINCE_AT, DRAINED_AT, TEXT_AT = 2, 18, 26
local SINCE_AT, ENDS_AT, MAX_KEYS_AT, FIRST_LIMIT = 34, 42, 50, 68

local algorithms = {}

-- The algorithm of a tag. Of a meter only the functions that most decisions need, unless it is to be complete.
local function algorithm_of(tag, complete)
  if tag <= LEAKY_QUEUE and not complete then
    return meters
  end
  algorithms[tag] = algorithms[tag] or algorithm_registry()[tag]()
  return algorithms[tag]
end

-- Parse the limit that begins at a position of a definition. Returns it and the position of the next one. Has all
-- fields that meters add, so that Lua need not grow the table.
local function parse_limit(packed, from, requirement)
  local tag, count, burst, p, q = struct.unpack(LIMIT_HEAD, packed, from)
  return {
    tag = tag, burst = burst, p = p, q = q, algorithm = algorithm_of(tag), packed = packed, from = from,
    parameters = count - 3, cost = requirement.cost, entries = requirement.entries,
    used = 0, at = 0, began = 0, refunds = '', max_delay = false,
  }, from + 3 + 8 * count
end

-- A number that only one algorithm uses.
local function parameter(limit, i)
  return (struct.unpack('<d', limit.packed, limit.from + 19 + 8 * i))
end
