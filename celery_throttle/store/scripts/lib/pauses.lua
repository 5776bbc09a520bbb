-- pauses.lua: until when limits are paused.
-- uses: clock, exact
--
-- Library. A pause is a string: until when (us) it lasts, a point, and when (us) it was written. If the clock
-- was set back since then, the pause lasts as long from now on as it did from then on. As one number it is
-- the time until which it lasts, which is how versions before this one read it.

local function write_pause(name, till, now, given)
  redis.call('SET', name, whole(till) .. '.' .. whole(now), 'PX', expiry(till - now, given))
end

-- How long (us) a pause lasts from now on; `value` is what its key holds.
local function paused_for(name, value, now, given)
  if not value then
    return 0
  end
  local till, written = string.match(value, '^(%d+)%.?(%d*)$')
  local rest, step = tonumber(till) - now, (tonumber(written) or now) - now
  if step > FARTHEST then
    rest = rest - step
    write_pause(name, now + rest, now, given)
  end
  return math.max(0, rest)
end

-- Lets a pause last so long (us) from now on, or longer if it does already. Returns how long it lasts.
local function pause_for(name, us, now, given)
  local rest = math.max(us, paused_for(name, redis.call('GET', name), now, given))
  write_pause(name, now + rest, now, given)
  return rest
end
