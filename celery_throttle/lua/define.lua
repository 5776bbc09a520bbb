-- define.lua: put definitions of limits in force.
-- uses: decide
--
-- KEYS  1            hash: definitions of limits
--       then per limit: state of the limit, or of the key defined
-- ARGV  1            now (us), or '' for the server's clock
--       2            'code' (defaults of the code: never replace one defined at run time)
--                    | 'reset' (the default of the code again) | 'set' (defined at run time) | 'drop'
--       then per limit: name, field, definition ("gcra 10000 1 20"; '' with 'drop')
-- Reply how many have changed.
--
-- What is in use of the limit or key itself is converted at once. The keys of a limit that are not
-- defined themselves may be many: their states are converted when they are read, by what the
-- definition says of the one before it.

local given, mode = ARGV[1], ARGV[2]
local origin = mode == 'set' and 'set' or 'code'
local now = clock(given)

local function in_force(name, field)
  local found = redis.call('HMGET', KEYS[1], field, name)
  local definition = found[1] or found[2]
  return definition and parse(definition)
end

local function put(field, text, old)
  local new = parse(origin .. ' ' .. text .. ' 0 0')
  local since, old_since = now, old and old.since or now
  if old and old.algorithm == new.algorithm and old.p == new.p and old.q == new.q
      and old.burst == new.burst then
    -- The same limit: what is in use under it needs no conversion.
    since, old_since = old.since, old.old_since
  end
  local times = string.format(' %.0f %.0f', since, old_since)
  redis.call('HSET', KEYS[1], field, origin .. ' ' .. text .. times)
end

local function convert_state(key, old, new)
  local state = old and new and redis.call('GET', key)
  if state then
    local used = convert(new, (used_at(old, state, now)), old.p, old.q)
    redis.call('SET', key, pack_state(new, used, now), 'PX', expiry(used / new.q, given))
  end
end

local changed = 0
for i = 2, #KEYS do
  local arg = 3 * i - 3
  local name, field, text = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
  local own = redis.call('HGET', KEYS[1], field)
  local old = in_force(name, field)
  if mode == 'drop' then
    changed = changed + redis.call('HDEL', KEYS[1], field)
    convert_state(KEYS[i], old, in_force(name, field))
  elseif not (mode == 'code' and own and string.sub(own, 1, 4) == 'set ') then
    put(field, text, old)
    convert_state(KEYS[i], old, in_force(name, field))
    changed = changed + 1
  end
end
return changed
