-- settle.lua: what was reserved turns out to be worth more or less: refund or debt.
-- uses: lines
--
-- KEYS  1            hash: definitions of limits
--       then per limit: state, entries, pause, pause of the key, waits
-- ARGV  1            now (us), or '' for the server's clock
--       then per limit: name, field, cost (millionths), and as `acquire.lua` told them: since, mark;
--                       actual cost (millionths)
-- Reply {1}
--       {-2, index, now (us)}    limit not defined, or the windows of its calendar have run out
-- If a limit has changed since, nothing is given back of it.

local given = ARGV[1]
local now = clock(given)
local refs = {}
for i = 1, (#KEYS - 1) / 5 do
  local key, arg = 5 * i - 3, 6 * i - 4
  refs[i] = {
    state = KEYS[key], entries = KEYS[key + 1], pause = KEYS[key + 2], key_pause = KEYS[key + 3],
    waits = KEYS[key + 4], name = ARGV[arg], field = ARGV[arg + 1], cost = tonumber(ARGV[arg + 2]),
    since = tonumber(ARGV[arg + 3]), mark = tonumber(ARGV[arg + 4]),
    actual = tonumber(ARGV[arg + 5]),
  }
end
local unknown = look(KEYS[1], refs, now, given)
if unknown then
  return { -2, unknown, whole(now) }
end
for _, ref in ipairs(refs) do
  local family = ref.limit.family
  if ref.actual > ref.cost or ref.actual < ref.cost and ref.since == ref.limit.since then
    if family.settle(ref, ref.mark, ref.cost, ref.actual, now) then
      family.write(ref, now, given)
      look_again(ref.waits, now)
    end
  end
end
return { 1 }
