-- line_costs.lua: reads what tasks of a line cost.
-- uses: clock, line_data

-- The costs of the task at a position from 0; nil if there is none. Unpacks only the line and the costs of its row, not
-- the message.
local function read_costs(messages, line, position)
  local id = redis.call('ZRANGE', line, format_integer(position), format_integer(position))[1]
  local row = id and redis.call('HGET', messages, id)
  return row and select(COSTS + 1, cmsgpack.unpack_limit(row, COSTS, 1))
end
