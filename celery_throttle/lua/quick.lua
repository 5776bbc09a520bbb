-- quick.lua: the commonest decision, made before anything else is: one name and key, all of whose
-- limits are GCRA, is asked for whole units. What is not so simple falls through to the long way.
--
-- Goes in front of `acquire.lua`, with its keys, arguments and replies. The rules are those of
-- `decide.lua` and `meters.lua`, in one piece: to make functions and to call them takes longer than
-- all the rest. The tests hold both ways against the reference.

if #KEYS == 5 and ARGV[2] == 'take' then
  local packed = redis.call('HMGET', KEYS[1], ARGV[4], ARGV[5])
  packed = packed[1] or packed[2]
  local values, cost = redis.call('MGET', KEYS[2], KEYS[3], KEYS[4]), ARGV[6] / 1000000
  local state, now = values[1], nil
  if packed and not values[2] and not values[3] and cost % 1 == 0 then
    if ARGV[1] == '' then
      now = redis.call('TIME')
      now = now[1] * 1000000 + now[2]
    else
      now = tonumber(ARGV[1])
    end
    local _, since, _, count = struct.unpack('<BddB', packed)
    local simple = not state or #state == 8 + 43 * count and struct.unpack('<d', state) == since
    -- If all allow it, and if one refuses: units left, microseconds until nothing is in use.
    local units, burst, reset, parts = math.huge, 0, 0, ''
    local wait, refused_units, refused_burst, refused_reset = 0, 0, 0, 0
    for i = 1, simple and count or 0 do
      local tag, numbers, capacity, p, q = struct.unpack('<BHddd', packed, 27 * i - 8)
      simple = tag == 1 and numbers == 3 and cost <= capacity
      local used = 0
      if simple and state then
        local at, old_p, old_q, tat, ticks
        tag, _, at, old_p, old_q, tat, ticks = struct.unpack('<BHddddd', state, 43 * i - 34)
        used = (tat - now) * q + ticks
        used = used > 0 and used or 0
        simple = tag == 1 and old_p == p and old_q == q and at <= now + 20000
      end
      if not simple then
        break
      end
      local rest = used % q
      local full = rest > 0 and (used - rest) / q + 1 or used / q
      refused_reset = full > refused_reset and full or refused_reset
      local after = used - capacity * p + cost * p
      if after > 0 then
        rest = after % q
        local own = rest > 0 and (after - rest) / q + 1 or after / q
        if own > wait then
          wait, refused_burst = own, capacity
          refused_units = math.floor(math.max(0, capacity * p - used) / p)
        end
      else
        local own = math.floor(-after / p)
        if own < units then
          units, burst = own, capacity
        end
        used = used + cost * p
        rest = used % q
        full = (used - rest) / q
        reset = full + (rest > 0 and 1 or 0) > reset and full + (rest > 0 and 1 or 0) or reset
        parts = parts .. struct.pack('<BHddddd', 1, 43, now, p, q, now + full, rest)
      end
    end
    if simple and wait > 0 then
      return { 0, wait, 1, refused_units, refused_reset, refused_burst, 0 }
    elseif simple then
      local lasts = math.ceil((reset + 1) / 1000) + (ARGV[1] == '' and 0 or 3600000)
      redis.call('SET', KEYS[2], struct.pack('<d', since) .. parts, 'PX', lasts)
      return { 1, units, reset, burst, 0, tonumber(ARGV[6]) }
    end
  end
end
