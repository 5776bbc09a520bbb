-- gcra_fast_path.lua: the most frequent decision, made before anything else is: mode 'take' for whole units, where
-- all limits are GCRA, and none has a pause, a key cap, or a state that has to be converted. All other calls fall
-- through to the rest of `acquire.lua`.
--
-- Goes in front of `acquire.lua` and has its keys, arguments and replies. The rules are those of `decision.lua` and
-- `meters.lua`, written in one piece: creating functions and calling them takes longer than all the rest. The tests
-- check both paths against the twin.

if ARGV[2] == 'take' and #KEYS < 4000 then -- more values than Lua's unpack allows fall through
  local TOTALS_KEPT_MS = 691200000 -- see `counters.lua`
  -- A requirement has three keys and two arguments if none has a key, else four and three; see `requirements.lua`.
  local fields = 2 * (#KEYS - 2) == 3 * (#ARGV - 3) and 1 or 2
  local keys = fields + 1
  local count, now = (#KEYS - 2) / (keys + 1), nil
  local definitions = redis.call('HMGET', KEYS[1], unpack(ARGV, 4, 3 + fields * count))
  local values = redis.call('MGET', unpack(KEYS, 2, 1 + keys * count))
  if ARGV[1] == '' then
    now = redis.call('TIME')
    now = now[1] * 1000000 + now[2]
  else
    now = tonumber(ARGV[1])
  end
  -- For the reply if all limits allow: units left, microseconds until nothing is in use, the states, and how long
  -- (us) these matter.
  local units, burst, reset, states, durations = math.huge, 0, 0, {}, {}
  local wait, bottleneck, refused_units, refused_burst, refused_reset = 0, 0, 0, 0, 0
  local is_simple = true
  for i = 1, count do
    local packed = definitions[fields * i - fields + 1] or definitions[fields * i]
    local state, cost = values[keys * i - keys + 1], ARGV[3 + fields * count + i] / 1000000
    if not packed or values[keys * i - keys + 2] or values[keys * i] or cost % 1 > 0 then
      is_simple = false
      break
    end
    local since, ends, max_keys, _, limits, tag, numbers, capacity, p, q =
      struct.unpack('<ddddBBHddd', packed, 18)
    is_simple = ends == 0 and (max_keys == 0 or fields == 1) and (not state or #state == 8 + 51 * limits)
    local parts, full_of_all = nil, 0
    for n = 1, is_simple and limits or 0 do
      if n > 1 then
        tag, numbers, capacity, p, q = struct.unpack('<BHddd', packed, 27 * n + 24)
      end
      is_simple = tag == 1 and numbers == 3 and cost <= capacity
      local used, began = 0, now
      if is_simple and state then
        local old_since, at, old_p, old_q, start, tat, ticks = since, nil, nil, nil, nil, nil, nil
        if n == 1 then
          old_since, tag, _, at, old_p, old_q, start, tat, ticks = struct.unpack('<dBHdddddd', state)
        else
          tag, _, at, old_p, old_q, start, tat, ticks =
            struct.unpack('<BHdddddd', state, 51 * n - 42)
        end
        used = (tat - now) * q + ticks
        if used > 0 then
          began = start
        else
          used = 0
        end
        is_simple = tag == 1 and old_since == since and old_p == p and old_q == q and at <= now + 20000
      end
      if not is_simple then
        break
      end
      local over = used - capacity * p + cost * p
      if over > 0 then
        local rest = over % q
        local own = rest > 0 and (over - rest) / q + 1 or over / q
        if own > wait then
          local free = capacity * p - used
          wait, bottleneck, refused_burst = own, i, capacity
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
      if n == 1 then
        parts = struct.pack('<dBHdddddd', since, 1, 51, now, p, q, began, now + full, rest)
      else
        parts = parts .. struct.pack('<BHdddddd', 1, 51, now, p, q, began, now + full, rest)
      end
      full = rest > 0 and full + 1 or full
      full_of_all = full > full_of_all and full or full_of_all
    end
    if not is_simple then
      break
    end
    states[i], durations[i] = parts, full_of_all
    reset = full_of_all > reset and full_of_all or reset
  end
  if is_simple and wait > 0 and (wait > 20000 or wait > (tonumber(ARGV[3]) or 0)) then
    local totals = KEYS[#KEYS] .. ARGV[3 + fields * bottleneck]
    if (ARGV[3] == '' or wait > tonumber(ARGV[3])) and redis.pcall('HINCRBY', totals, 'refused_limit', 1) == 1 then
      redis.pcall('PEXPIRE', totals, TOTALS_KEPT_MS)
    end
    return { 0, wait, bottleneck, refused_units, refused_reset, refused_burst, 0 }
  elseif is_simple and wait == 0 then
    for i = 1, count do
      local ms = math.ceil(durations[i] / 1000) + (ARGV[1] == '' and 0 or 3600000)
      redis.call('SET', KEYS[keys * i - keys + 2], states[i], 'PX', ms)
      local totals, cost = KEYS[#KEYS] .. ARGV[3 + fields * i], ARGV[3 + fields * count + i]
      if redis.pcall('HINCRBY', totals, 'granted', cost) == tonumber(cost) then
        redis.pcall('PEXPIRE', totals, TOTALS_KEPT_MS)
      end
    end
    return { 1, units, reset, burst, 0, tonumber(ARGV[4 + fields * count]) }
  end
end
