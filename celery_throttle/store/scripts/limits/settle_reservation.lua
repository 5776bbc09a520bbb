-- settle_reservation.lua: corrects what was reserved to its actual cost: a refund or a debt.
-- KEYS  1   hash: definitions of limits; then the requirements, see `requirements.lua`; then per requirement:
--           waiting-lists; then the head of the totals, see `counters.lua`
-- ARGV  2   '1' if any requirement has a key
--       then the requirements; then per requirement: actual cost (millionths); then its marks, see
--       `take_marks.lua`; 0 and 0 if they are not known
-- Reply {1}
--       {-2, index, now (us)}    this requirement is not defined, or its calendar windows have run out
-- If the definition has changed since, nothing is refunded, and a debt counts as taken now.

local keyed = ARGV[2] == '1'
local count = (#KEYS - 2) / (keyed and 5 or 4)
local requirements, undefined = read_requirements(count, 2, 3, keyed)
if undefined then
  return { -2, undefined, format_integer(now) }
end
work_without_memory()
local costs = 3 + (keyed and 2 or 1) * count
local marks = costs + 2 * count -- where those of a requirement begin
for i, requirement in ipairs(requirements) do
  local limits = tonumber(ARGV[marks + 1])
  settle_take(requirement, { unpack(ARGV, marks, marks + 1 + 2 * limits) }, tonumber(ARGV[costs + count + i - 1]),
              KEYS[#KEYS - 1 - count + i])
  marks = marks + 2 + 2 * limits
end
return { 1 }
