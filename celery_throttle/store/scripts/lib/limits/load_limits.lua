-- load_limits.lua: loads the limits, states and pauses of requirements.
-- uses: definition, state, pauses, fan_out_name
-- uses rarely: convert_state, definition_record

--   definitions    records in the hash of definitions, `fields` values for each requirement: for its key, if
--                  any requirement has a key, and for its name
--   values         `keys` values for each requirement: its state, the pause of its name, and, if any
--                  requirement has a key, the pause of its key
--   names          the keys of these values, from names[first] on
-- Returns nil, or the index of the first requirement that is not defined, or whose calendar has no window left.
-- Writes a state or a pause only if the clock was set back.
local function load_limits(requirements, definitions, fields, values, keys, names, first)
  for i = 1, #requirements do
    local requirement = requirements[i]
    local packed = definitions[fields * (i - 1) + 1] or definitions[fields * i]
    if not packed and requirement.name == FAN_OUT_NAME then
      packed = string.rep('\0', FIRST_LIMIT - 1) -- no limits: only its pause counts
    elseif not packed then
      return i
    end
    local since, ends, max_keys, max_waiting, count = struct.unpack(DECISIVE_HEAD, packed, SINCE_AT)
    if ends > 0 and ends <= now then
      packed = definition_record().in_force(packed, definitions[fields * i])
      if not packed then
        return i
      end
      since, ends, max_keys, max_waiting, count = struct.unpack(DECISIVE_HEAD, packed, SINCE_AT)
    end
    requirement.since, requirement.ends = since, ends > 0 and ends
    if max_keys > 0 or max_waiting > 0 then
      requirement.max_keys, requirement.max_waiting = max_keys, max_waiting
    end
    local limits, from = { false }, FIRST_LIMIT
    for n = 1, count do
      limits[n], from = parse_limit(packed, from, requirement)
      local tag = limits[n].tag
      if tag == FIXED_WINDOW and limits[n].algorithm.is_expired(limits[n]) then
        return i
      elseif tag == SLIDING_LOG then
        -- Each log has a zset of its own. The one without a number is that of slots.
        limits[n].entries = requirement.entries .. '+' .. n
      end
    end
    requirement.limits = limits
    if count == 0 then
      limits[1] = nil
    elseif limits[1].has_shadows then
      local shadows, size = struct.unpack('<BH', packed, from)
      requirement.shadows = { packed = packed, from = from + 3, count = shadows }
      requirements.has_shadows = true
      local shadow_from, shadow_limit = from + 3, nil
      for _ = 1, shadows do
        shadow_limit, shadow_from = parse_limit(packed, shadow_from, requirement)
        if shadow_limit.tag == FIXED_WINDOW and shadow_limit.algorithm.is_expired(shadow_limit) then
          return i
        end
      end
      from = from + 3 + size
    end
    if max_keys > 0 and requirement.has_key then
      requirement.key_cap = string.sub(packed, from, struct.unpack('<I', packed, TEXT_AT) - 1)
    end
    local value = keys * (i - 1) + 1
    local state, pause, key_pause = values[value], values[value + 1], values[keys * i]
    if not read_state(requirement, state) then
      convert_state()(requirement, state, (struct.unpack('<d', packed, OLD_SINCE_AT)))
    end
    if pause or key_pause then
      local name = first + value - 1
      requirement.pause = math.max(pause_left(names[name + 1], pause),
                                   pause_left(names[name + keys - 1], key_pause))
    end
  end
end
