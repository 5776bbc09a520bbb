-- capacity.lua: what limits could give now, and from when on they give more.
-- uses: refs
--
-- KEYS  1            hash: definitions of limits
--       then for each ref: state, pause, pause of the key; then for each: entries; see `refs.lua`
-- ARGV  1            now (us), or '' for the server's clock
--       2            '1' if any ref has a key
--       then for each ref: field of the key, field of the name; then for each: one unit (millionths)
-- Reply {1, {for how long (us) it is paused, and for each of its limits: how much (millionths) could pass
--        now, when (us) nothing is in use, when (us) a unit can pass, millionths of its rate in force}, ...}
--       {-2, index, now (us)}    not defined, or the windows of a calendar have run out

local given, keyed = ARGV[1], ARGV[2] == '1'
local now = clock(given)
local count = (#KEYS - 1) / (keyed and 4 or 3)
local refs, unknown = read_refs(count, 2, 3, keyed, now, given)
if unknown then
  return { -2, unknown, whole(now) }
end
local reply = { 1 }
for i, ref in ipairs(refs) do
  local row = { ref.paused }
  for _, limit in ipairs(ref.limits) do
    local amount, full = limit.algorithm.left(limit, now, true)
    local share = limit.tag == ADAPTIVE and limit.share or MILLION
    row[#row + 1], row[#row + 2], row[#row + 3] = amount, full, limit.algorithm.check(limit, now, true)
    row[#row + 1] = share
  end
  reply[i + 1] = row
end
return reply
