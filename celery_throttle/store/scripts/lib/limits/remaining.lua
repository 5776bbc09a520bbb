-- remaining.lua: what a requirement could grant now. Returns the amount (whole units unless `fractional`),
-- microseconds until nothing is in use, and the limit that has least.
-- uses: definition, arithmetic

local function remaining_of(requirement, fractional)
  local limits = requirement.limits
  local amount, reset, least = math.huge, requirement.pause, limits[1]
  for i = 1, #limits do
    local own, full = limits[i].algorithm.remaining(limits[i], fractional)
    own = fractional and own or own - own % MILLION
    if own < amount then
      amount, least = own, limits[i]
    end
    if full > reset then
      reset = full
    end
  end
  return requirement.pause > 0 and 0 or amount, reset, least
end
