-- renew.lua: leases of slots go on; one that has run out, too, if nobody has taken a slot since. Anew,
-- they also begin that the server does not know: of tasks that run, whatever was forgotten.
-- uses: clock, exact, tags
-- uses rarely: key_cap
--
-- KEYS  entries, one for each holder; then for each the crowd; then for each the state
-- ARGV  1   now (us), or '' for the server's clock
--       2   how long (us) from now
--       3   '1' if also anew
--       then the holders

local given = ARGV[1]
local now, lease = clock(given), tonumber(ARGV[2])

-- A state has the longest lease of all, see `slots.lua`.
local function lengthen(name)
  local state = redis.call('GET', name)
  local from = 9
  while state and from < #state do
    local tag, size = struct.unpack('<BH', state, from)
    if tag == SLOTS and size == 11 and struct.unpack('<d', state, from + 3) < lease then
      state = string.sub(state, 1, from + 2) .. struct.pack('<d', lease) .. string.sub(state, from + 11)
      redis.call('SET', name, state, 'KEEPTTL')
    end
    from = from + size
  end
end

local count = #KEYS / 3
for i = 1, count do
  local entries = KEYS[i]
  if ARGV[3] == '1' then
    redis.call('ZADD', entries, whole(now + lease), ARGV[i + 3])
  else
    redis.call('ZADD', entries, 'XX', whole(now + lease), ARGV[i + 3])
  end
  local last = redis.call('ZRANGE', entries, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIRE', entries, expiry(tonumber(last) - now, given))
    key_cap().renew(KEYS[count + i], entries, tonumber(last), now, given)
    lengthen(KEYS[2 * count + i])
  end
end
