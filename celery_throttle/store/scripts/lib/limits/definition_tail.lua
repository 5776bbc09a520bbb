-- definition_tail.lua: reads what follows the numbers of a definition, see `definition.lua`.
-- uses: definition
-- Returns a function of a definition and the position of its first limit. Its result is a table:
--   text      the limits
--   ends      when (us) it ends by itself, 0 for never
--   at        when (us) it was given
--   about     JSON: who gave it, and why
--   below     what follows it when it ends: an origin, and the second part of a definition; '' for that of the name,
--             or none

return function(packed, from)
  local has_shadows = string.byte(packed, from) > HAS_SHADOWS
  for _ = 1, string.byte(packed, from - 1) do
    from = from + 3 + 8 * select(2, struct.unpack('<BH', packed, from))
  end
  if has_shadows then
    from = from + 3 + select(2, struct.unpack('<BH', packed, from))
  end
  local text, ends, at, about, below = string.match(packed, '^(%Z*)%z?%Z*%z?(%d*) ?(%d*) ?(%Z*)%z?(.*)$', from)
  return { text = text, ends = tonumber(ends) or 0, at = at, about = about, below = below }
end
