-- unpack_row.lua: unpacks the row of a task.
-- uses: line_data

-- Nil if the row is damaged, or was written by another version in a way that this one cannot read: its task must not
-- stop the others.
local function unpack_row(packed)
  local is_unpacked, row = pcall(cmsgpack.unpack, packed)
  if is_unpacked and type(row) == 'table' and type(row[LINE]) == 'string' and type(row[COSTS]) == 'table'
      and type(row[EXPIRES]) == 'number' and type(row[PARKED]) == 'number' and type(row[MESSAGE]) == 'string'
      and type(row[SCORE]) == 'number' then
    return row
  end
end
