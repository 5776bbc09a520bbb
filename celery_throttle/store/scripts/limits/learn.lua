-- learn.lua: learns from the answer of an API about the limits that its request has passed, about each what the answer
-- says of it. No limit grants more than its definition.
-- KEYS  1   hash: definitions of limits; then the requirements, see `requirements.lua`; then per requirement:
--           its row of refusals, origin of its pause, and paused keys, see `pause.lua`; then the head of the totals,
--           see `counters.lua`
-- ARGV  2   '1' if any requirement has a key
--       then the requirements; their costs are not used
--       then per requirement:
--       1   'refused', 'overloaded', or ''
--       2   for how long (us) the limit should stop at least; -1 if the answer did not say
--       3   how much (millionths) the API says is left of its own quota; -1 if it did not say
--       4   units of the API's whole quota; -1 if it did not say
--       5   its period (us); 0 for that of the limit
--       6   how long (us) after its request the answer came; -1 if it says nothing about the rate
--       7   about: JSON, who stops the limit and why
--       8   JSON: the key, and the task that has sent the request; '' unless refused
-- Reply {1, for how long (us) the limit stops that stops longest}
--       {-2, index, now (us)}    this requirement is not defined, or its calendar windows have run out
-- A row of refusals is a string: the last pause (us), a point, and when (us) its refusal came.

local keyed = ARGV[2] == '1'
local count = (#KEYS - 2) / (keyed and 7 or 6)
local requirements, undefined = read_requirements(count, 2, 3, keyed)
if undefined then
  return { -2, undefined, format_integer(now) }
end

-- Times (us) for which the first refusal in a row stops a limit if the answer does not say. Twins:
-- DEFAULT_STOP_SECONDS and ADAPTIVE_STOP_SECONDS in `celery_throttle/limits/feedback.py`.
local DEFAULT_STOP, ADAPTIVE_STOP = 1000000, 100000

-- The longest pause, and for how long after its pause a row is remembered. Twin: `algorithms/pauses.py`, which
-- has the rule.
local LONGEST_STOP, ROW_MEMORY = 300000000, 60000000

local function read_answer(i)
  local from = #ARGV - 8 * (count - i + 1)
  return {
    kind = ARGV[from + 1], stop = tonumber(ARGV[from + 2]), left = tonumber(ARGV[from + 3]),
    quota = tonumber(ARGV[from + 4]), period = tonumber(ARGV[from + 5]), took = tonumber(ARGV[from + 6]),
    about = ARGV[from + 7], request = ARGV[from + 8],
  }
end

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

-- Learn what an answer says about a requirement. Returns whether one of its limits is adaptive.
local function learn(requirement, answer)
  local has_changed, has_adaptive = false, false
  for _, limit in ipairs(requirement.limits) do
    if limit.tag == ADAPTIVE or limit.tag == SLOTS and limit.parameters > 0 then
      has_adaptive = true
      has_changed = answer.took >= 0 and limit.algorithm.learn(limit, answer) or has_changed
    end
    if limit.tag ~= SLOTS and answer.left >= 0 then
      has_changed = tighten(limit, answer.left) or has_changed
    end
  end
  if has_changed then
    write_state(requirement)
  end
  return has_adaptive
end

-- Returns for how long (us) an answer that does not say stops a limit. `row`: key of its row of refusals; `first`: the
-- shortest pause, 0 for an accepted request, which ends the row.
local function stop_in_row(row, first, took)
  local last, at = string.match(redis.call('GET', row) or '', '^(%d+)%.(%d+)$')
  last, at = tonumber(last), tonumber(at)
  if last and at <= now and now - took < at then
    return 0 -- its request was sent before the last pause began
  elseif first == 0 then
    if last then
      redis.call('DEL', row)
    end
    return 0
  end
  local stop = first
  if last and now < at + last + ROW_MEMORY then
    local percent = last < 1000000 and 1000 or 100 + now % 201
    stop = math.min(LONGEST_STOP, math.max(first, last + math.floor(last * percent / 1000)))
  end
  redis.call('SET', row, format_integer(stop) .. '.' .. format_integer(now), 'PX', expiry_ms(stop + ROW_MEMORY))
  return stop
end

work_without_memory()
local longest, keys = 0, keyed and 3 or 2
for i, requirement in ipairs(requirements) do
  local answer, row = read_answer(i), #KEYS - 3 * (count - i + 1)
  local has_adaptive, stop = learn(requirement, answer), answer.stop
  if stop < 0 then
    local first = answer.kind == 'refused' and has_adaptive and ADAPTIVE_STOP or DEFAULT_STOP
    if answer.kind ~= '' or answer.took >= 0 then
      stop = stop_in_row(KEYS[row], answer.kind ~= '' and first or 0, math.max(0, answer.took))
    end
  end
  if answer.kind == 'refused' then
    increase_total(requirement.name, 'api_refusals', 1)
    note_in_totals(requirement.name, LAST_API_REFUSAL, format_integer(now) .. ' ' .. answer.request)
  end
  if stop > 0 then
    local names = { KEYS[2 + keys * (i - 1) + (requirement.has_key and 2 or 1)], KEYS[row + 1], KEYS[row + 2] }
    names[4] = requirement.has_key and string.sub(ARGV[2 * i + 1], #requirement.name + 2) or nil
    longest = math.max(longest, (extend_pause(names, stop, answer.about)))
  end
  if answer.kind ~= '' then
    longest = math.max(longest, requirement.pause)
  end
end
return { 1, longest }
