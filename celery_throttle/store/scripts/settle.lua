-- settle.lua: what was reserved turns out to be worth more or less: refund or debt.
-- uses: refs, lines
--
-- KEYS  1            hash: definitions of limits
--       then for each ref: state, pause, pause of the key; then for each: entries; then: waits
-- ARGV  1            now (us), or '' for the server's clock
--       2            '1' if any ref has a key; see `refs.lua`
--       then for each ref: field of the key, field of the name; then for each: cost (millionths);
--       then: actual cost (millionths); then what `acquire.lua` told: since, how many limits, their marks
-- Reply {1}
--       {-2, index, now (us)}    not defined, or the windows of a calendar have run out
-- If the limits of a name have changed since, nothing is given back, and what is owed counts as taken
-- now.

local given = ARGV[1]
local now, keyed = clock(given), ARGV[2] == '1'
local count = (#KEYS - 1) / (keyed and 5 or 4)
local refs, unknown = read_refs(count, 2, 3, keyed, now, given)
if unknown then
  return { -2, unknown, whole(now) }
end
local costs = 3 + (keyed and 2 or 1) * count
local told = costs + 2 * count
for i, ref in ipairs(refs) do
  local actual, marks = tonumber(ARGV[costs + count + i - 1]), tonumber(ARGV[told + 1])
  local same, changed = tonumber(ARGV[told]) == ref.since and marks == #ref.limits, false
  if actual > ref.cost or actual < ref.cost and same then
    for place, limit in ipairs(ref.limits) do
      local mark, more = 0, 0
      if same then
        mark, more = tonumber(ARGV[told + 2 * place]), tonumber(ARGV[told + 2 * place + 1])
      end
      local algorithm = algorithm_of(limit.tag, true)
      changed = algorithm.settle(limit, mark, more, ref.cost, actual, now) or changed
    end
  end
  if changed then
    write(ref, now, given)
    look_again(KEYS[#KEYS - count + i], now)
  end
  told = told + 2 + 2 * marks
end
return { 1 }
