-- parameter.lua: the numbers of a definition that only one algorithm uses, see `definition.lua`.

-- The i-th parameter of a limit.
local function parameter(limit, i)
  return (struct.unpack('<d', limit.packed, limit.from + 19 + 8 * i))
end
