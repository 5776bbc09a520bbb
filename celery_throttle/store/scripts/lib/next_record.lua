-- next_record.lua: what follows a definition that has ended by itself. Nobody has to be there: each decision finds it out,
-- as if that had been defined at the end. `definitions.lua` writes it down at the next change.

-- The record in force, given that of a limit or key and that of its name, which may be the same or false; false if
-- there is none.
local function follow(record, name_record)
  local since, ends = struct.unpack('<dd', record, SINCE_AT)
  if ends == 0 or ends > now then
    return record
  end
  local layers = layers_in(record)
  local ended, layer = top_of(layers)
  layers[layer] = nil
  local below = top_of(layers)
  if below and below.identity == ended.identity then
    return follow(pack_record(layers, times_in(record)), name_record)
  elseif below then
    return follow(pack_record(layers, ends, since, used_up_after(record, ends)), name_record)
  end
  name_record = name_record and name_record ~= record and follow(name_record, false)
  if not name_record then
    return false
  end
  local name_since, _, name_used_up = times_in(name_record)
  if name_since == since then
    return name_record -- the same limits
  end
  local used_up = math.max(name_used_up, used_up_after(record, ends))
  if name_since > ends then
    return with_times(name_record, name_since, ends, used_up)
  end
  return with_times(name_record, ends, since, used_up)
end

return follow
