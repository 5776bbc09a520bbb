-- weights.lua: reads weights.
-- uses: clock
-- A weight is a text of three numbers: the weight that was set at run time, when (us) that ends by itself, and the
-- weight of the rules file. 0 stands for none, and for never.

-- The weight in force of a text; nil for none.
local function weight_in_force(text)
  if text then
    local set, ends, rules = string.match(text, '^(%d+) (%d+) (%d+)$')
    local is_set = set ~= '0' and (ends == '0' or tonumber(ends) > now)
    return is_set and tonumber(set) or rules ~= '0' and tonumber(rules) or nil
  end
end
