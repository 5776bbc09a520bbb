-- line_costs.lua: reads what tasks of a line cost.
-- uses: clock, line_data

-- The costs of the task at a position from 0, nil if there is none or they cannot be read; and the bytes of its row, of
-- which only the line and the costs are unpacked, not the message.
local function read_costs(messages, line, position)
  local id = redis.call('ZRANGE', line, format_integer(position), format_integer(position))[1]
  local row = id and redis.call('HGET', messages, id)
  if not row then
    return nil, 0
  end
  local is_unpacked, _, _, costs = pcall(cmsgpack.unpack_limit, row, COSTS, 1)
  return is_unpacked and type(costs) == 'table' and costs or nil, #row
end
