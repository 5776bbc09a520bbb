-- clock.lua: time, and how it is written. Integer microseconds throughout.
--
-- Library, no keys and no arguments of its own.

-- The server's clock, unless the caller passes a time (tests do).
local function clock(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A number as text, with all its digits. A command takes numbers below 10^17 as they are.
local function whole(number)
  return string.format('%.0f', number)
end

-- How long a key is to be kept, in milliseconds. With a time of the caller's own, real time must not
-- expire what the caller still counts on.
local function expiry(us, given)
  local ms = us > 1000 and math.ceil(us / 1000) or 1
  if given ~= '' then
    ms = ms + 3600000
  end
  return ms
end
