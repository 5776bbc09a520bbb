-- clock.lua: the time of the call, and integers that a double holds exactly. All times are integer microseconds; an
-- amount is integer millionths of a unit. The twins in `celery_throttle/algorithms/` follow the same rules with
-- unbounded integers.
-- ARGV  1   now (us), or '' for the server's clock. Every script that uses `now` has this argument first; only tests
--           pass a time.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local MILLION = 1000000

-- The scripts count exactly up to this integer. Twin: MAX_EXACT in `celery_throttle/limits/rate.py`.
local MAX_EXACT = 4503599627370496

-- How far ahead (us) a start is booked at most. A state that lies farther in the future was written before the clock
-- was set back. Twin: MAX_BOOKING_US in `celery_throttle/limits/limit.py`.
local FARTHEST = 20000

-- Format an integer with all its digits, as part of a text or for a reply. Commands take a number as it is: below 10^17
-- with all its digits, and a score may be greater.
local function format_integer(number)
  return string.format('%.0f', number)
end

-- Milliseconds to keep a key that matters for `us`; at least 1. Where a test passes its own time, an hour more: real
-- time must not expire a key that still matters by the test's time.
local function expiry_ms(us)
  local ms = us > 1000 and math.ceil(us / 1000) or 1
  return ARGV[1] == '' and ms or ms + 3600000
end

-- Divide and round up. math.ceil(a / b) is not exact: a / b may round to the wrong side of an integer.
local function divide_up(a, b)
  local rest = a % b
  return rest > 0 and (a - rest) / b + 1 or a / b
end
