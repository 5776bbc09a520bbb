-- state.lua: reads and writes the state of a requirement, see `requirements.lua`.
-- uses: clock, definition
-- uses rarely: key_cap
-- A state is a string: since when (d, us) its definition is in force, then for each limit its part: tag (B), size of
-- the part (H), and what its algorithm keeps.

-- Read a state, false if there is none. Returns false if it cannot be used as it is: see `convert_state.lua`.
local function read_state(requirement, state)
  local limits, from = requirement.limits, 9
  local usable = not state or struct.unpack('<d', state) == requirement.since
  for i = 1, #limits do
    local limit = limits[i]
    if not state then
      limit.algorithm.read(limit, false, 0)
    elseif usable and from < #state then
      local tag, size = struct.unpack('<BH', state, from)
      usable = tag == limit.tag and limit.algorithm.read(limit, state, from)
      from = from + size
    else
      return false
    end
  end
  return usable and (not state or from > #state)
end

local function write_state(requirement)
  local limits = requirement.limits
  local state, lasts = limits[1].algorithm.write(limits[1])
  for i = 2, #limits do
    local part, longer = limits[i].algorithm.write(limits[i])
    state, lasts = state .. part, math.max(lasts, longer)
  end
  redis.call('SET', requirement.state, struct.pack('<d', requirement.since) .. state, 'PX', expiry_ms(lasts))
  if requirement.key_cap then
    key_cap().note_use(requirement)
  end
end
