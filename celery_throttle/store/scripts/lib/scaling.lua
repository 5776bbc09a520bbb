-- scaling.lua: exact a * b / c, also for products that a double does not hold. Few decisions need it.

-- Every integer up to this one is exact.
local EXACT = 2 ^ 53

-- a * b / c rounded down, and the remainder, for a < c <= 2^51. Multiplies digit by digit, so that no intermediate
-- result exceeds MAX_EXACT.
local function scale(a, b, c)
  local base = 2
  while base < 65536 and c * base * 2 <= MAX_EXACT do
    base = base * 2
  end
  local digits = {}
  while b > 0 do
    local digit = b % base
    digits[#digits + 1], b = digit, (b - digit) / base
  end
  local quotient, rest = 0, 0
  for i = #digits, 1, -1 do
    rest = rest * base + a * digits[i]
    local times = math.floor(rest / c)
    quotient, rest = quotient * base + times, rest - times * c
  end
  return quotient, rest
end

-- a * b / c for any a, rounded down; and the remainder.
local function scale_down(a, b, c)
  local product, units = a * b, math.floor(a / c)
  if product < EXACT then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local quotient, rest = scale(a - units * c, b, c)
  return units * b + quotient, rest
end

local function scale_up(a, b, c)
  local quotient, rest = scale_down(a, b, c)
  return quotient + (rest > 0 and 1 or 0)
end

return scale_down, scale_up
