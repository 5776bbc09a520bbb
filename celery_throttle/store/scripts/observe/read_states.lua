-- read_states.lua: what limits could grant now, and when they can grant more.
-- KEYS  1   hash: definitions of limits; then the requirements, see `requirements.lua`
-- ARGV  2   '1' if any requirement has a key
--       then the requirements, each with the cost of one unit
-- Reply {1, {for how long (us) it is paused; for each of its limits: amount (millionths) that could pass now, us until
--        nothing is in use, us until a unit can pass, its rate, or number of slots, in force in millionths
--        of the defined one}, ...}
--       {-2, index, now (us)}    this requirement is not defined, or its calendar windows have run out

local keyed = ARGV[2] == '1'
local count = (#KEYS - 1) / (keyed and 4 or 3)
local requirements, undefined = read_requirements(count, 2, 3, keyed)
if undefined then
  return { -2, undefined, format_integer(now) }
end
local reply = { 1 }
for i, requirement in ipairs(requirements) do
  local row = { requirement.pause }
  for _, limit in ipairs(requirement.limits) do
    local amount, reset = limit.algorithm.remaining(limit, true)
    row[#row + 1], row[#row + 2], row[#row + 3] = amount, reset, limit.algorithm.check(limit, true)
    row[#row + 1] = limit.share or MILLION
  end
  reply[i + 1] = row
end
return reply
