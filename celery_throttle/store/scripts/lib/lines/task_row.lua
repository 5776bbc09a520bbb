-- task_row.lua: packs the row of a task that joins its line now, see `line_data.lua`.
-- uses: clock, line_data

local function pack_row(line, costs, expires, message, score, key_caps, position)
  -- Without holes, so that it is packed as an array.
  return cmsgpack.pack({ line, costs, expires, now, message, score, key_caps or false, position })
end
