-- claim_totals.lua: counts the tasks that leave a line with their units, by how long they waited.
-- uses: clock, counters, line_data
-- A wait is counted in the first bucket that is as long: bucket n has waits up to WAIT_BASE * 2^n us, the last one
-- all others. Twin: WAIT_BOUNDS in `celery_throttle/observe/totals.py`. To write little, each of these tasks stands for
-- one unit that was granted; 'granted' is increased by what its cost is more than that.

local WAIT_BASE, LAST_WAIT_BUCKET = 100000, 20

-- Note a task that is claimed with its units, by its row, in the tables `waiting-lists` and `extra_costs` of its batch.
local function note_claim(batch, row)
  local mantissa, exponent = math.frexp((now - row[PARKED]) / WAIT_BASE)
  local bucket = mantissa == 0.5 and exponent - 1 or exponent
  bucket = bucket < 0 and 0 or bucket > LAST_WAIT_BUCKET and LAST_WAIT_BUCKET or bucket
  batch.wait_counts[bucket] = (batch.wait_counts[bucket] or 0) + 1
  local costs = row[COSTS]
  for i = 1, #costs do
    if costs[i] ~= MILLION then
      batch.extra_costs[i] = (batch.extra_costs[i] or 0) + costs[i] - MILLION
    end
  end
end

local function write_claim_totals(batch, descriptor)
  for i, limit_keys in ipairs(descriptor.limits) do
    for bucket, tasks in pairs(batch.wait_counts) do
      increase_total(limit_keys[NAME], bucket, tasks)
    end
    if batch.extra_costs[i] then
      increase_total(limit_keys[NAME], 'granted', batch.extra_costs[i])
    end
  end
  if batch.handed_out > 0 then
    increase_totals(descriptor, 'handed_out', batch.handed_out)
  end
end
