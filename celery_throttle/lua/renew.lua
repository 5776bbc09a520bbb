-- renew.lua: leases of slots go on; one that has run out, too, if nobody has taken a slot since. Anew,
-- they also begin that the server does not know: of tasks that run, whatever was forgotten.
-- uses: clock, exact
-- uses rarely: crowd
--
-- KEYS  entries, one for each holder; then for each the crowd
-- ARGV  1   now (us), or '' for the server's clock
--       2   how long (us) from now
--       3   '1' if also anew
--       then the holders

local given = ARGV[1]
local now, lease = clock(given), tonumber(ARGV[2])
for i = 1, #KEYS / 2 do
  local entries = KEYS[i]
  if ARGV[3] == '1' then
    redis.call('ZADD', entries, whole(now + lease), ARGV[i + 3])
  else
    redis.call('ZADD', entries, 'XX', whole(now + lease), ARGV[i + 3])
  end
  local last = redis.call('ZRANGE', entries, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIRE', entries, expiry(tonumber(last) - now, given))
    crowd().renew(KEYS[#KEYS / 2 + i], entries, tonumber(last), now, given)
  end
end
