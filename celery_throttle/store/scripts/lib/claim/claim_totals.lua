-- claim_totals.lua: counts the tasks that leave a line: with their units, and how long they waited; or handed out
-- without any.
-- uses: clock, counters, line_data
-- A wait is counted in the first bucket that is as long: bucket n has waits up to WAIT_BASE * 2^n us, the last one
-- all others. Twin: WAIT_BOUNDS in `celery_throttle/store/counters.py`.

local WAIT_BASE, LAST_WAIT_BUCKET = 100000, 20

local function wait_bucket(wait)
  local mantissa, exponent = math.frexp(wait / WAIT_BASE)
  return math.min(LAST_WAIT_BUCKET, math.max(0, mantissa == 0.5 and exponent - 1 or exponent))
end

local function new_claim_totals()
  return { costs = {}, buckets = {}, waited = 0, handed_out = 0 }
end

-- Note a task that is claimed with its units, by its row.
local function note_claim(totals, row)
  for i, cost in ipairs(row[COSTS]) do
    totals.costs[i] = (totals.costs[i] or 0) + cost
  end
  local wait = math.max(0, now - row[PARKED])
  local bucket = wait_bucket(wait)
  totals.buckets[bucket], totals.waited = (totals.buckets[bucket] or 0) + 1, totals.waited + wait
end

local function write_claim_totals(totals, descriptor)
  if totals.handed_out > 0 then
    increase_totals(descriptor, 'handed_out', totals.handed_out)
  end
  if #totals.costs > 0 then
    for i, limit_keys in ipairs(descriptor.limits) do
      increase_total(limit_keys[NAME], 'granted', totals.costs[i] or 0)
      increase_total(limit_keys[NAME], 'waited', totals.waited)
      for bucket, tasks in pairs(totals.buckets) do
        increase_total(limit_keys[NAME], 'wait_' .. bucket, tasks)
      end
    end
  end
end
