-- parameter.lua: reads a number of a definition that only one algorithm uses, see `definition.lua`.

local function parameter(limit, i)
  return (struct.unpack('<d', limit.packed, limit.from + 19 + 8 * i))
end
