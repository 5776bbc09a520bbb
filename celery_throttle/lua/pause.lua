-- pause.lua: stop a limit (or one key of it) for everyone until a time; never shortens a pause.
-- uses: clock, exact
--
-- KEYS  1   until when (us) it is paused
-- ARGV  1   now (us), or '' for the server's clock
--       2   how long (us)
-- Reply how long (us) it is now paused.

local now = clock(ARGV[1])
local till = math.max(now + tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[1]) or 0))
redis.call('SET', KEYS[1], whole(till), 'PX', expiry(till - now, ARGV[1]))
return till - now
