-- pauses.lua: reads pauses.
-- uses: clock, arithmetic
-- A pause is a string: its end (us), a point, and when (us) it was written.

local function write_pause(key, ends)
  redis.call('SET', key, format_integer(ends) .. '.' .. format_integer(now), 'PX', expiry_ms(ends - now))
end

-- Microseconds that a pause lasts from now on, 0 if there is none; `value` is what its key holds. If the clock was
-- set back since the pause was written, moves its end back, so that it lasts as long as it did.
local function pause_left(key, value)
  if not value then
    return 0
  end
  local ends, written = string.match(value, '^(%d+)%.(%d+)$')
  local rest, step = ends - now, written - now
  if step > FARTHEST then
    rest = rest - step
    write_pause(key, now + rest)
  end
  return math.max(0, rest)
end
