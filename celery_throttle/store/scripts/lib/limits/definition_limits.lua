-- definition_limits.lua: parses and compares the limits of definitions. Returns its functions.
-- uses: definition, parameter

-- Numbers and text of the limits of a definition, and whether one has a calendar, and one slots. `from` is the position
-- of its first limit.
local function parse(packed, from)
  local count, start, limit, has_calendar, has_slots = string.byte(packed, from - 1), from, nil, false, false
  local has_shadows = string.byte(packed, from) > HAS_SHADOWS
  for _ = 1, count do
    limit, from = parse_limit(packed, from, {})
    has_calendar = has_calendar or limit.tag == FIXED_WINDOW and parameter(limit, 1) == 0
    has_slots = has_slots or limit.tag == SLOTS
  end
  local numbers = string.char(string.byte(packed, start) % HAS_SHADOWS) .. string.sub(packed, start + 1, from - 1)
  if has_shadows then
    from = from + 3 + select(2, struct.unpack('<BH', packed, from))
  end
  return { numbers = numbers, text = string.match(packed, '^%Z*', from),
           has_calendar = has_calendar, has_slots = has_slots }
end

-- The text of limits without shadow limits, max-keys, max-waiting and the outage policy.
local function admission_text(text)
  text = string.gsub(string.gsub(text, ' max%-%a+ %d+', ''), ' outage %a+', '')
  return (string.gsub(text, ';? ?[^;]* shadow', ''))
end

-- Whether two definitions admit the same, however their rates are written. The known windows of a calendar depend on
-- when they were computed, so its text is compared.
local function are_same(one, from, other, other_from)
  one, other = parse(one, from), parse(other, other_from)
  if one.has_calendar or other.has_calendar then
    return admission_text(one.text) == admission_text(other.text)
  end
  return one.numbers == other.numbers
end

return { parse = parse, are_same = are_same }
