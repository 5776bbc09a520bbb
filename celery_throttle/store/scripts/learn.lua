-- learn.lua: what an answer says of the limits that its request passed. It can stop or tighten them, never
-- loosen them beyond their definition.
-- uses: refs
--
-- KEYS  1            hash: definitions of limits
--       then for each ref: state, pause, pause of the key; then for each: entries; see `refs.lua`
-- ARGV  1            now (us), or '' for the server's clock
--       2            '1' if any ref has a key
--       then for each ref: field of the key, field of the name; then for each: cost (millionths), of no
--       meaning here; then for each: how much (millionths) is left of the API's own quota, -1 if the
--       answer did not say; then
--                    '1' if it was a refusal, '0' if not
--                    for how long (us) they are to stop at least; -1 if it did not say
--                    how long (us) after its request it came
-- Reply {1, how long (us) they stop}
--       {-2, index, now (us)}    not defined, or the windows of a calendar have run out

local given, keyed = ARGV[1], ARGV[2] == '1'
local now = clock(given)
local count = (#KEYS - 1) / (keyed and 4 or 3)
local refs, unknown = read_refs(count, 2, 3, keyed, now, given)
if unknown then
  return { -2, unknown, whole(now) }
end
local refused, stop, took = ARGV[#ARGV - 2] == '1', tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV])

-- Without a word about it from the API: see UNTOLD in `celery_throttle/limits/feedback.py`.
local UNTOLD = 1000000

-- As if somebody else had taken what the API counts and we did not.
local function tighten(limit, api_left)
  local own = limit.algorithm.left(limit, now, true)
  if own <= api_left then
    return false
  end
  limit.cost = own - api_left
  limit.algorithm.take(limit, now, now)
  return true
end

local rest = 0
for i, ref in ipairs(refs) do
  local changed, adaptive = false, false
  local api_left = tonumber(ARGV[#ARGV - 3 - count + i])
  for _, limit in ipairs(ref.limits) do
    if limit.tag == ADAPTIVE then
      local fell, own = limit.algorithm.answered(limit, now, took, refused)
      adaptive, changed, rest = true, changed or fell, math.max(rest, own)
    end
    if limit.tag ~= SLOTS and api_left >= 0 then
      changed = tighten(limit, api_left) or changed
    end
  end
  if changed then
    write(ref, now, given)
  end
  if refused and not adaptive then
    rest = math.max(rest, UNTOLD)
  end
end
if stop < 0 then
  stop = rest
end
if stop > 0 then
  local keys = keyed and 3 or 2
  for i = 1, count do
    local name = KEYS[2 + keys * (i - 1) + (refs[i].has_key and 2 or 1)]
    stop = math.max(stop, pause_for(name, stop, now, given))
  end
end
return { 1, stop }
