-- ended_definition.lua: what is in force of a definition that ends by itself.
-- uses: clock, definition
-- uses rarely: definition_tail, definition_limits
-- Nobody has to be there when it ends: each decision finds out for itself what follows, as if that had been defined at
-- the end. `define.lua` writes it down at its next call.
-- Returns a function of the definition and of that of its name, which may be the same or false. Its results are the
-- definition in force, false if there is none; and when (us) that ends by itself, nil for never.

local function in_force(packed, name_packed)
  if string.byte(packed) ~= BOUNDED_ORIGIN then
    return packed
  end
  local tail = definition_tail()(packed, FIRST_LIMIT)
  if tail.ends > now then
    return packed, tail.ends
  end
  local _, since, old_since = struct.unpack(HEAD, packed)
  if tail.below ~= '' then
    local origin, below = string.sub(tail.below, 1, 1), string.sub(tail.below, 2)
    if definition_limits().are_same(packed, FIRST_LIMIT, below, FIRST_IN_SECOND_PART) then
      return origin .. string.sub(packed, 2, SECOND_PART - 1) .. below -- their states need no conversion
    end
    return origin .. struct.pack('<ddd', tail.ends, since, old_since) .. below
  elseif not name_packed or name_packed == packed then
    return false
  end
  local name_ends
  name_packed, name_ends = in_force(name_packed, name_packed)
  if not name_packed then
    return false
  end
  local name_origin, name_since = struct.unpack(HEAD, name_packed)
  if name_since == since then
    return name_packed, name_ends -- the same limits
  end
  local times = name_since > tail.ends and { name_since, tail.ends, since } or { tail.ends, since, old_since }
  local first_part = struct.pack('<Bddd', name_origin, unpack(times))
  return first_part .. string.sub(name_packed, SECOND_PART), name_ends
end

return in_force
