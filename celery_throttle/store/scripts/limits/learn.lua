-- learn.lua: learns from the answer of an API about the limits that its request has passed. An answer can stop or
-- tighten a limit, never loosen it beyond its definition.
-- KEYS  1   hash: definitions of limits; then the requirements, see `requirements.lua`; then per requirement:
--           origin of its pause and paused keys, see `pause.lua`; then the head of the totals, see `counters.lua`
-- ARGV  2   '1' if any requirement has a key
--       then the requirements; their costs are not used
--       then per requirement: how much (millionths) the API says is left of its own quota, -1 if it did not say; then
--       last but three  '1' if the answer was a refusal, '0' if not
--       last but two  for how long (us) the limits should stop at least; -1 if the answer did not say
--       last but one  how long (us) after its request the answer came
--       last          about: JSON, who stops the limits and why
-- Reply {1, for how long (us) the limit stops that stops longest}
--       {-2, index, now (us)}    this requirement is not defined, or its calendar windows have run out

local keyed = ARGV[2] == '1'
local count = (#KEYS - 2) / (keyed and 6 or 5)
local requirements, undefined = read_requirements(count, 2, 3, keyed)
if undefined then
  return { -2, undefined, format_integer(now) }
end
local is_refusal, stop, took = ARGV[#ARGV - 3] == '1', tonumber(ARGV[#ARGV - 2]), tonumber(ARGV[#ARGV - 1])

-- How long (us) a refusal stops a limit if neither the answer nor the limit says. Twin: DEFAULT_STOP_SECONDS in
-- `celery_throttle/limits/feedback.py`.
local DEFAULT_STOP = 1000000

-- Take what a limit grants beyond the API's own quota, as if another client had. Returns whether it has changed.
local function tighten(limit, api_left)
  local own = limit.algorithm.remaining(limit, true)
  if own <= api_left then
    return false
  end
  limit.cost = own - api_left
  limit.algorithm.take(limit, now)
  return true
end

work_without_memory()
local rest = 0
for i, requirement in ipairs(requirements) do
  local has_changed, has_adaptive = false, false
  local api_left = tonumber(ARGV[#ARGV - 4 - count + i])
  for _, limit in ipairs(requirement.limits) do
    if limit.tag == ADAPTIVE then
      local has_learned, own = limit.algorithm.learn(limit, took, is_refusal)
      has_adaptive, has_changed, rest = true, has_changed or has_learned, math.max(rest, own)
    end
    if limit.tag ~= SLOTS and api_left >= 0 then
      has_changed = tighten(limit, api_left) or has_changed
    end
  end
  if has_changed then
    write_state(requirement)
  end
  if is_refusal then
    increase_total(requirement.name, 'api_refusals', 1)
    rest = math.max(rest, has_adaptive and 0 or DEFAULT_STOP)
  end
end
if stop < 0 then
  stop = rest
end
local longest = 0
if stop > 0 then
  local keys = keyed and 3 or 2
  for i = 1, count do
    local requirement, origin = requirements[i], #KEYS - 2 * (count - i) - 2
    local names = { KEYS[2 + keys * (i - 1) + (requirement.has_key and 2 or 1)], KEYS[origin], KEYS[origin + 1] }
    names[4] = requirement.has_key and string.sub(ARGV[2 * i + 1], #requirement.name + 2) or nil
    longest = math.max(longest, (extend_pause(names, stop, ARGV[#ARGV])))
  end
end
return { 1, longest }
