-- requirements.lua: reads requirements from the keys and arguments of a call.
-- uses: load_limits, bulk_commands
-- A requirement is a limit, a key of it or none, and a cost. It is a table:
--   name        of the limit
--   state       key of its state, see `state.lua`
--   entries     key of what the algorithm keeps besides, see `sliding_log.lua` and `slots.lua`
--   has_key     whether it has a key
--   cost        millionths of a unit to take of each of its limits
-- `load_limits` adds
--   limits      the limits of its definition, all of which have to allow the cost
--   since, ends                      of its definition, see `definition.lua`; `ends` is false if it does not end
--   max_keys, max_waiting            of its definition, if it has one of them
--   key_cap     key of its key cap, if it has one
--   pause       microseconds from now until its pause ends; 0 if there is none
--   is_converted    true if its state had to be converted
--
-- Values of one kind lie side by side in KEYS and ARGV, so that they are passed on without building a table:
-- KEYS  from `first_key` on for each requirement: state, pause of the name, pause of the key; then for each:
--       entries
-- ARGV  from `first_argument` on for each requirement: field of the key, field of the name; then for each: cost
--       (millionths)
-- If no requirement has a key, `keyed` is false, and the pauses and the fields of keys are left out.

-- Returns the requirements; and nil, or the index of the first that is not defined, see `load_limits`.
local function read_requirements(count, first_key, first_argument, keyed)
  local requirements = {}
  local keys, fields = keyed and 3 or 2, keyed and 2 or 1
  local entries, cost = first_key + keys * count - 1, first_argument + fields * count - 1
  for i = 1, count do
    requirements[i] = {
      name = ARGV[first_argument + fields * i - 1], state = KEYS[first_key + keys * (i - 1)], entries = KEYS[entries + i],
      cost = tonumber(ARGV[cost + i]),
      has_key = keyed and ARGV[first_argument + 2 * i - 2] ~= ARGV[first_argument + 2 * i - 1],
      pause = 0, limits = false, since = 0, ends = false,
    }
  end
  local undefined = load_limits(requirements, read_many('HMGET', KEYS[1], ARGV, first_argument, cost), fields,
                                read_many('MGET', nil, KEYS, first_key, entries), keys, KEYS, first_key)
  return requirements, undefined
end
