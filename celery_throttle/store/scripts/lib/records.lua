-- records.lua: the record of a limit, or of one key of it, in the hash of definitions; and weights, which are there, too.
-- A record begins with the definition in force, see `definition.lua`. Behind that are the layers, packed by cmsgpack: a
-- table of the definitions that the code, the rules file and people (at run time) have given. Of these the one of run
-- time is in force, else that of the rules file, else that of the code. Its numbers and text are in front only: each
-- decision reads the record, and takes longer if that is long. A definition of a layer is a table:
--   numbers    what decisions read, packed by `celery_throttle/store/definitions.py`
--   text       the limits
--   identity   equal for limits that make the same decisions, however their rates are written
--   has_slots  whether one of the limits has slots
--   at         when (us) it was given
--   about      JSON: who gave it, and why
--   ends       when (us) it ends by itself, 0 for never
-- A weight is a text of three numbers: the weight that was set at run time, when (us) that ends by itself, and the
-- weight of the rules file. 0 stands for none, and for never.

local LAYERS = { 'set', 'rules', 'code' }

-- The definition of the topmost layer, and the name of the layer; nil if there is none.
local function top_of(layers)
  for _, layer in ipairs(LAYERS) do
    if layers[layer] then
      return layers[layer], layer
    end
  end
end

-- The limits of a record in force, as text.
local function text_in(record)
  local text_at, layers_at = struct.unpack('<II', record, TEXT_AT)
  return string.sub(record, text_at, layers_at - 1)
end

local function layers_in(record)
  local text_at, layers_at = struct.unpack('<II', record, TEXT_AT)
  local layers = cmsgpack.unpack(string.sub(record, layers_at))
  local top = top_of(layers)
  top.numbers, top.text = string.sub(record, MAX_KEYS_AT, text_at - 1), text_in(record)
  return layers
end

-- The definition that is in force by a record, and the name of its layer.
local function definition_in(record)
  return top_of(layers_in(record))
end

-- When (us) the definition of a record came into force, when the one before it did, and when its limits were used up.
local function times_in(record)
  local old_since, used_up = struct.unpack('<dd', record, OLD_SINCE_AT)
  return (struct.unpack('<d', record, SINCE_AT)), old_since, used_up
end

-- When (us) the limits of some numbers have drained that were used up. In a calendar, a period may be longer than its
-- rate says.
local function drained_at(numbers, used_up)
  local count, from, longest = string.byte(numbers, 17), FIRST_LIMIT - MAX_KEYS_AT + 1, 0
  for _ = 1, used_up > 0 and count or 0 do
    local tag, size, burst, p, q = struct.unpack(LIMIT_HEAD, numbers, from)
    longest, from = tag == SLOTS and longest or math.max(longest, burst * p / q), from + 3 + 8 * size
  end
  return used_up + 2 * longest
end

-- When (us) the limits count as used up that replace those of a record at a time; 0 if those have drained.
local function used_up_after(record, at)
  return at < struct.unpack('<d', record, DRAINED_AT) and at or 0
end

-- Pack a record of layers, of which one exists. For the times see `definition.lua`.
local function pack_record(layers, since, old_since, used_up)
  local top, layer = top_of(layers)
  local numbers, text = top.numbers, top.text
  local text_at = MAX_KEYS_AT + #numbers
  local head = struct.pack('<BdddIIdd', string.byte(layer), old_since, used_up, drained_at(numbers, used_up), text_at,
                           text_at + #text, since, top.ends)
  top.numbers, top.text = nil, nil
  local record = head .. numbers .. text .. cmsgpack.pack(layers)
  top.numbers, top.text = numbers, text
  return record
end

-- The same record with other times.
local function with_times(record, since, old_since, used_up)
  local drained = drained_at(string.sub(record, MAX_KEYS_AT), used_up)
  return struct.pack('<Bddd', string.byte(record), old_since, used_up, drained)
    .. string.sub(record, TEXT_AT, SINCE_AT - 1) .. struct.pack('<d', since) .. string.sub(record, ENDS_AT)
end

-- The record in force, given those of a key and of its name, false for none; false if there is none.
local function record_in_force(record, name_record)
  record, name_record = record or name_record, record and name_record
  local ends = record and struct.unpack('<d', record, ENDS_AT) or 0
  if ends == 0 or ends > now then
    return record
  end
  return next_record()(record, name_record)
end

-- The weight in force of a text; nil for none.
local function weight_in_force(text)
  if text then
    local set, ends, rules = string.match(text, '^(%d+) (%d+) (%d+)$')
    local is_set = set ~= '0' and (ends == '0' or tonumber(ends) > now)
    return is_set and tonumber(set) or rules ~= '0' and tonumber(rules) or nil
  end
end
