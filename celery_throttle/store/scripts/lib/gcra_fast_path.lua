-- gcra_fast_path.lua: the commonest decision, made before anything else is: all limits are GCRA, none is paused
-- or has keys that are counted, and whole units are asked for. What is not so simple falls through to
-- the long way.
--
-- Goes in front of `acquire.lua`, with its keys, arguments and replies. The rules are those of
-- `decide.lua` and `meters.lua`, in one piece: to make functions and to call them takes longer than
-- all the rest. The tests hold both ways against the reference.

if ARGV[2] == 'take' and #KEYS < 4000 then -- which Lua can pass on at once
  -- Three keys and two arguments a ref if none has a key, else four and three; see `refs.lua`.
  local fields = 2 * (#KEYS - 1) == 3 * (#ARGV - 3) and 1 or 2
  local keys = fields + 1
  local count, now = (#KEYS - 1) / (keys + 1), nil
  local definitions = redis.call('HMGET', KEYS[1], unpack(ARGV, 4, 3 + fields * count))
  local values = redis.call('MGET', unpack(KEYS, 2, 1 + keys * count))
  if ARGV[1] == '' then
    now = redis.call('TIME')
    now = now[1] * 1000000 + now[2]
  else
    now = tonumber(ARGV[1])
  end
  -- If all allow it: units left, microseconds until nothing is in use, states and how long they last.
  local units, burst, reset, states, lasts = math.huge, 0, 0, {}, {}
  -- If one refuses.
  local wait, bound, refused_units, refused_burst, refused_reset = 0, 0, 0, 0, 0
  local simple = true
  for i = 1, count do
    local packed = definitions[fields * i - fields + 1] or definitions[fields * i]
    local state, cost = values[keys * i - keys + 1], ARGV[3 + fields * count + i] / 1000000
    if not packed or values[keys * i - keys + 2] or values[keys * i] or cost % 1 > 0 then
      simple = false
      break
    end
    local _, since, _, _, max_keys, _, limits, tag, numbers, capacity, p, q =
      struct.unpack('<BdddddBBHddd', packed)
    simple = (max_keys == 0 or fields == 1) and (not state or #state == 8 + 51 * limits)
    local parts, full_of_all = nil, 0
    for place = 1, simple and limits or 0 do
      if place > 1 then
        tag, numbers, capacity, p, q = struct.unpack('<BHddd', packed, 27 * place + 16)
      end
      simple = tag == 1 and numbers == 3 and cost <= capacity
      local used, began = 0, now
      if simple and state then
        local old_since, at, old_p, old_q, start, tat, ticks = since, nil, nil, nil, nil, nil, nil
        if place == 1 then
          old_since, tag, _, at, old_p, old_q, start, tat, ticks = struct.unpack('<dBHdddddd', state)
        else
          tag, _, at, old_p, old_q, start, tat, ticks =
            struct.unpack('<BHdddddd', state, 51 * place - 42)
        end
        used = (tat - now) * q + ticks
        if used > 0 then
          began = start
        else
          used = 0
        end
        simple = tag == 1 and old_since == since and old_p == p and old_q == q and at <= now + 20000
      end
      if not simple then
        break
      end
      local over = used - capacity * p + cost * p
      if over > 0 then
        local rest = over % q
        local own = rest > 0 and (over - rest) / q + 1 or over / q
        if own > wait then
          local free = capacity * p - used
          wait, bound, refused_burst = own, i, capacity
          refused_units = free > 0 and math.floor(free / p) or 0
        end
      else
        local own = math.floor(-over / p)
        if own < units then
          units, burst = own, capacity
        end
      end
      local rest = used % q
      local full = rest > 0 and (used - rest) / q + 1 or used / q
      refused_reset = full > refused_reset and full or refused_reset
      used = used + cost * p
      rest = used % q
      full = (used - rest) / q
      if place == 1 then
        parts = struct.pack('<dBHdddddd', since, 1, 51, now, p, q, began, now + full, rest)
      else
        parts = parts .. struct.pack('<BHdddddd', 1, 51, now, p, q, began, now + full, rest)
      end
      full = rest > 0 and full + 1 or full
      full_of_all = full > full_of_all and full or full_of_all
    end
    if not simple then
      break
    end
    states[i], lasts[i] = parts, full_of_all
    reset = full_of_all > reset and full_of_all or reset
  end
  if simple and wait > 0 and (wait > 20000 or wait > (tonumber(ARGV[3]) or 0)) then
    return { 0, wait, bound, refused_units, refused_reset, refused_burst, 0 }
  elseif simple and wait == 0 then
    for i = 1, count do
      local ms = math.ceil(lasts[i] / 1000) + (ARGV[1] == '' and 0 or 3600000)
      redis.call('SET', KEYS[keys * i - keys + 2], states[i], 'PX', ms)
    end
    return { 1, units, reset, burst, 0, tonumber(ARGV[4 + fields * count]) }
  end
end
