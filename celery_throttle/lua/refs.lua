-- refs.lua: refs out of the keys and arguments of a call, where these lie side by side by kind, so
-- that they are passed on without a table being made of them.
-- uses: decide
--
-- Library. KEYS from `key` on: state, pause, pause of the key, for each ref; then for each its entries.
-- ARGV from `arg` on: field of the key and of the name, for each ref; then for each its cost (millionths
-- of a unit).

local function read_refs(count, key, arg, now, given)
  local refs = {}
  local entries, cost = key + 3 * count - 1, arg + 2 * count - 1
  for i = 1, count do
    refs[i] = {
      state = KEYS[key + 3 * i - 3], entries = KEYS[entries + i], cost = tonumber(ARGV[cost + i]),
      paused = 0, limits = false, since = 0, old_since = 0,
    }
  end
  local unknown = look(refs, redis.call('HMGET', KEYS[1], unpack(ARGV, arg, cost)),
                       redis.call('MGET', unpack(KEYS, key, entries)), now, given)
  return refs, unknown
end
