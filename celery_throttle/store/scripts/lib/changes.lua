-- changes.lua: the log of changes that people and files make to limits: the last 1,000.
-- uses: clock
-- KEYS  4   stream: changes; an entry has the fields
--           at      when (us)
--           action  'set', 'unset', 'end' (of a definition that ends by itself), 'code', 'rules', 'weight', 'pause',
--                   'resume', 'reset', or what else a command did
--           limit   field of the limit or key in the hash of definitions
--           old, new  the limits, the weight, or the microseconds of a pause, as text
--           about   JSON: who did it, and why
--           until   when (us) the definition or weight ends by itself; left out if it does not

-- How many changes are kept, and for how long (ms) after the last one: a year.
local CHANGES_KEPT, CHANGES_KEPT_MS = 1000, 31536000000

local function record_change(action, limit, old, new, about, ends)
  local entry = { 'at', format_integer(now), 'action', action, 'limit', limit, 'old', old, 'new', new, 'about', about }
  if ends and ends > 0 then
    entry[#entry + 1], entry[#entry + 2] = 'until', format_integer(ends)
  end
  redis.call('XADD', KEYS[4], 'MAXLEN', CHANGES_KEPT, '*', unpack(entry))
  redis.call('PEXPIRE', KEYS[4], CHANGES_KEPT_MS)
end
