-- pauses.lua: reads and writes pauses. A pause is a string: its end (us), a point, and when (us) it was written.

local function write_pause(pause, ends)
  redis.call('SET', pause, format_integer(ends) .. '.' .. format_integer(now), 'PX', expiry_ms(ends - now))
end

-- Microseconds that a pause lasts from now on, 0 if there is none; `value` is what its key holds. If the clock was
-- set back since the pause was written, moves its end back, so that it lasts as long as it did.
local function pause_left(key, value) -- rare
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

-- Pause a limit, or one key of it, for `us` from now on, or longer if the pause in force ends later. Returns how long
-- (us) it lasts, and how long (us) the pause before lasts from now on.
--   names   the pause; what is known of its origin; and for a key the zset of paused keys, and the key
--   about   JSON: who pauses it, and why. It stays that of the pause that ends last
local function extend_pause(names, us, about)
  local pause, origin, paused_keys, key = unpack(names)
  local before = pause_left(pause, redis.call('GET', pause))
  local rest = math.max(us, before)
  write_pause(pause, now + rest)
  if us >= before then
    redis.call('SET', origin, format_integer(now) .. ' ' .. about, 'PX', expiry_ms(rest))
  end
  if key then
    redis.call('ZADD', paused_keys, format_integer(now + rest), key)
    local last = redis.call('ZRANGE', paused_keys, -1, -1, 'WITHSCORES')[2]
    redis.call('PEXPIRE', paused_keys, expiry_ms(last - now))
    redis.call('ZREMRANGEBYSCORE', paused_keys, '-inf', format_integer(now))
  end
  return rest, before
end
