-- extend_pause.lua: pauses a limit, or one key of it, for `us` from now on, or longer if the pause in force ends
-- later. Returns how long (us) it lasts.
-- uses: pauses

local function extend_pause(key, us)
  local rest = math.max(us, pause_left(key, redis.call('GET', key)))
  write_pause(key, now + rest)
  return rest
end
