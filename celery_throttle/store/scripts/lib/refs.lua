-- refs.lua: refs out of the keys and arguments of a call, where these lie side by side by kind, so
-- that they are passed on without a table being made of them.
-- uses: decide, bulk_commands
--
-- Library. KEYS from `key` on: state, pause, pause of the key, for each ref; then for each its entries.
-- ARGV from `arg` on: field of the key and of the name, for each ref; then for each its cost (millionths
-- of a unit). If no ref has a key, its pause and its field are left out: then `keyed` is false.

local function read_refs(count, key, arg, keyed, now, given)
  local refs = {}
  local keys, fields = keyed and 3 or 2, keyed and 2 or 1
  local entries, cost = key + keys * count - 1, arg + fields * count - 1
  for i = 1, count do
    refs[i] = {
      state = KEYS[key + keys * (i - 1)], entries = KEYS[entries + i], cost = tonumber(ARGV[cost + i]),
      has_key = keyed and ARGV[arg + 2 * i - 2] ~= ARGV[arg + 2 * i - 1], paused = 0, limits = false,
      since = 0, old_since = 0, older_since = 0,
    }
  end
  local unknown = look(refs, read_many('HMGET', KEYS[1], ARGV, arg, cost), fields,
                       read_many('MGET', nil, KEYS, key, entries), keys, KEYS, key, now, given)
  return refs, unknown
end
