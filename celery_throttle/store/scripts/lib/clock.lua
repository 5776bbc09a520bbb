-- clock.lua: the time of the call, and how times are written. All times are integer microseconds.
-- ARGV  1   now (us), or '' for the server's clock. Every script that includes this file has this argument
--           first; only tests pass a time.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Format an integer with all its digits. Commands need this for numbers of 10^17 and more.
local function format_integer(number)
  return string.format('%.0f', number)
end

-- Milliseconds to keep a key that matters for `us`; at least 1. Where a test passes its own time, an hour more: real
-- time must not expire a key that still matters by the test's time.
local function expiry_ms(us)
  local ms = us > 1000 and math.ceil(us / 1000) or 1
  return ARGV[1] == '' and ms or ms + 3600000
end
