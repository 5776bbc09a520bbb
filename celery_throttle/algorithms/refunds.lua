-- refunds.lua: what was refunded in a busy period. Twin: `BusyPeriod` in `meters.py`, which explains the rule.
-- Packed, three numbers for each run of takes that are settled: the end of the take before them (see the function `mark`
-- of the algorithm), the end of the last of them, and the refund. Sorted by the first.

local MAX_REFUNDS = 10

local function unpack_refunds(packed)
  local found = { struct.unpack('<' .. string.rep('d', #packed / 8), packed) }
  table.remove(found) -- the position where the reading ended
  return found
end

-- What was refunded of the takes up to a mark.
local function refunded(packed, mark)
  local found, sum = unpack_refunds(packed), 0
  for i = 1, #found, 3 do
    sum = sum + (found[i] < mark and found[i + 2] or 0)
  end
  return sum
end

-- Merge the refund that begins at an index with the one before it.
local function merge(refunds, i)
  refunds[i - 2] = math.max(refunds[i - 2], table.remove(refunds, i + 1))
  refunds[i - 1] = refunds[i - 1] + table.remove(refunds, i + 1)
  table.remove(refunds, i)
end

-- Returns the refunds with one more.
local function add_refund(packed, start, finish, amount)
  if amount == 0 then
    return packed
  end
  local refunds, position = unpack_refunds(packed), 1
  while position < #refunds and refunds[position] <= start do
    position = position + 3
  end
  for offset, number in ipairs({ start, finish, amount }) do
    table.insert(refunds, position + offset - 1, number)
  end
  for i = #refunds - 2, 4, -3 do
    if refunds[i] <= refunds[i - 2] then
      merge(refunds, i)
    end
  end
  if #refunds > 3 * MAX_REFUNDS then
    merge(refunds, 4)
  end
  return struct.pack('<' .. string.rep('d', #refunds), unpack(refunds))
end

return refunded, add_refund
