-- renew.lua: renews leases of slots. One that has expired is renewed, too, unless its slot was taken since.
-- KEYS  for each holder: entries; then for each: key cap; then for each: state
-- ARGV  2   lease (us) from now on
--       3   '1' to also write leases that the server has lost: of tasks that run
--       then for each: holder

local lease = tonumber(ARGV[2])

-- Write the lease into a state that has only shorter ones, see `slots.lua`.
local function lengthen_longest_lease(key)
  local state = redis.call('GET', key)
  local from = 9
  while state and from < #state do
    local tag, size = struct.unpack('<BH', state, from)
    if tag == SLOTS and struct.unpack('<d', state, from + 3) < lease then
      state = string.sub(state, 1, from + 2) .. struct.pack('<d', lease) .. string.sub(state, from + 11)
      redis.call('SET', key, state, 'KEEPTTL')
    end
    from = from + size
  end
end

work_without_memory()
local count = #KEYS / 3
for i = 1, count do
  local entries = KEYS[i]
  if ARGV[3] == '1' then
    redis.call('ZADD', entries, format_integer(now + lease), ARGV[i + 3])
  else
    redis.call('ZADD', entries, 'XX', format_integer(now + lease), ARGV[i + 3])
  end
  local last = redis.call('ZRANGE', entries, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIRE', entries, expiry_ms(tonumber(last) - now))
    key_cap().renew(KEYS[count + i], entries, tonumber(last))
    lengthen_longest_lease(KEYS[2 * count + i])
  end
end
