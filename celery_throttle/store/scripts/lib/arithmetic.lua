-- arithmetic.lua: integers that a double holds exactly. Time is integer microseconds; an amount is integer millionths
-- of a unit. The twins in `celery_throttle/algorithms/` follow the same rules with unbounded integers.

local MILLION = 1000000

-- The scripts count exactly up to this integer. Twin: MAX_EXACT in `celery_throttle/limits/rate.py`.
local MAX_EXACT = 4503599627370496

-- How far ahead (us) a start is booked at most. A state that lies farther in the future was written before the clock
-- was set back. Twin: MAX_BOOKING_US in `celery_throttle/limits/limit.py`.
local FARTHEST = 20000

-- Divide and round up. math.ceil(a / b) is not exact: a / b may round to the wrong side of an integer.
local function divide_up(a, b)
  local rest = a % b
  return rest > 0 and (a - rest) / b + 1 or a / b
end
