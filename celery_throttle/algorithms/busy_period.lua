-- busy_period.lua: what was refunded in a busy period. Twin: `BusyPeriod` in `meters.py`, which explains the rule.
-- Packed, three numbers for each run of takes that are settled: the end of the take before them (see the function
-- `mark` of the algorithm), the end of the last of them, and the refund. Sorted by the first.

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
local function merge(runs, i)
  runs[i - 2] = math.max(runs[i - 2], table.remove(runs, i + 1))
  runs[i - 1] = runs[i - 1] + table.remove(runs, i + 1)
  table.remove(runs, i)
end

-- Returns the refunds with one more.
local function add_refund(packed, start, finish, amount)
  if amount == 0 then
    return packed
  end
  local runs, position = unpack_refunds(packed), 1
  while position < #runs and runs[position] <= start do
    position = position + 3
  end
  for offset, number in ipairs({ start, finish, amount }) do
    table.insert(runs, position + offset - 1, number)
  end
  for i = #runs - 2, 4, -3 do
    if runs[i] <= runs[i - 2] then
      merge(runs, i)
    end
  end
  if #runs > 3 * MAX_REFUNDS then
    merge(runs, 4)
  end
  return struct.pack('<' .. string.rep('d', #runs), unpack(runs))
end

return refunded, add_refund
