-- definition_record.lua: the record of a limit, or of one key of it, in the hash of definitions. Returns its functions.
-- uses: clock, definition
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

local records, LAYERS = {}, { 'set', 'rules', 'code' }

-- The definition of the topmost layer, and the name of the layer; nil if there is none.
function records.top(layers)
  for _, layer in ipairs(LAYERS) do
    if layers[layer] then
      return layers[layer], layer
    end
  end
end

function records.layers(record)
  local text_at, layers_at = struct.unpack('<II', record, TEXT_AT)
  local layers = cmsgpack.unpack(string.sub(record, layers_at))
  local top = records.top(layers)
  top.numbers, top.text = string.sub(record, MAX_KEYS_AT, text_at - 1), string.sub(record, text_at, layers_at - 1)
  return layers
end

-- When (us) the definition of a record came into force, and when the one before it did.
function records.since(record)
  return (struct.unpack('<d', record, SINCE_AT))
end

function records.old_since(record)
  return (struct.unpack('<d', record, OLD_SINCE_AT))
end

-- The limits of a record in force, as text.
function records.text(record)
  local text_at, layers_at = struct.unpack('<II', record, TEXT_AT)
  return string.sub(record, text_at, layers_at - 1)
end

-- The definition that is in force by a record in force.
function records.definition(record)
  return (records.top(records.layers(record)))
end

-- Pack a record of layers, of which one exists. For the times see `definition.lua`.
function records.pack(layers, since, old_since)
  local top, layer = records.top(layers)
  local numbers, text = top.numbers, top.text
  local text_at = MAX_KEYS_AT + #numbers
  local head = struct.pack('<BdIIdd', string.byte(layer), old_since, text_at, text_at + #text, since, top.ends)
  top.numbers, top.text = nil, nil
  local record = head .. numbers .. text .. cmsgpack.pack(layers)
  top.numbers, top.text = numbers, text
  return record
end

-- The same record with other times.
function records.with_times(record, since, old_since)
  return struct.pack('<Bd', string.byte(record), old_since) .. string.sub(record, TEXT_AT, SINCE_AT - 1)
    .. struct.pack('<d', since) .. string.sub(record, ENDS_AT)
end

-- The record in force, given that of a limit or key and that of its name, which may be the same or false; false if
-- there is none. A definition may have ended by itself, and nobody has to be there: each decision finds out what
-- follows, as if that had been defined at the end. `change_definition.lua` writes it down at the next change.
function records.in_force(record, name_record)
  local since, ends = struct.unpack('<dd', record, SINCE_AT)
  if ends == 0 or ends > now then
    return record
  end
  local layers = records.layers(record)
  local ended = layers.set
  layers.set = nil
  local below = records.top(layers)
  if below and below.identity == ended.identity then
    return records.pack(layers, since, records.old_since(record))
  elseif below then
    return records.pack(layers, ends, since)
  end
  name_record = name_record and name_record ~= record and records.in_force(name_record, false)
  if not name_record then
    return false
  end
  local name_since = records.since(name_record)
  if name_since == since then
    return name_record -- the same limits
  elseif name_since > ends then
    return records.with_times(name_record, name_since, ends)
  end
  return records.with_times(name_record, ends, since)
end

return records
