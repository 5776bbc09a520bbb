-- exact.lua: arithmetic on whole numbers that a double holds exactly.
--
-- Library, no keys and no arguments of its own. Time is integer microseconds, an amount is integer
-- millionths of a unit. `celery_throttle/reference/` holds the same rules in Python, where whole
-- numbers have no bounds.

local MILLION = 1000000

-- What the scripts count is exact up to here (see MAX_EXACT in limits/rate.py).
local MAX_EXACT = 4503599627370496

-- The farthest a slot is ever booked ahead, in microseconds (see FARTHEST in limits.py). A state
-- that was written farther in the future can only come from a clock that stepped back since.
local FARTHEST = 20000

-- Whole division: a / b may round to the wrong side of an integer.
local function divided_up(a, b)
  local rest = a % b
  return rest > 0 and (a - rest) / b + 1 or a / b
end

-- Made when they are needed, which is seldom.
local function exact()
  -- a * b / c rounded down, and what is left over, for a < c <= 2^51: digit by digit, since the
  -- product may be too large to be exact.
  local function scaled(a, b, c)
    local base = 2
    while base < 65536 and c * base * 2 <= MAX_EXACT do
      base = base * 2
    end
    local digits = {}
    while b > 0 do
      local digit = b % base
      digits[#digits + 1], b = digit, (b - digit) / base
    end
    local whole, rest = 0, 0
    for i = #digits, 1, -1 do
      rest = rest * base + a * digits[i]
      local times = math.floor(rest / c)
      whole, rest = whole * base + times, rest - times * c
    end
    return whole, rest
  end

  -- a * b / c for any a, rounded down and up.
  local function scaled_down(a, b, c)
    local units = math.floor(a / c)
    return units * b + scaled(a - units * c, b, c)
  end

  local function scaled_up(a, b, c)
    local units = math.floor(a / c)
    local whole, rest = scaled(a - units * c, b, c)
    return units * b + whole + (rest > 0 and 1 or 0)
  end

  return scaled, scaled_down, scaled_up
end

-- One of the numbers that a limit has for its algorithm alone; see `definition.lua`.
local function number(limit, i)
  return (struct.unpack('<d', limit.packed, limit.from + 19 + 8 * i))
end
