-- set_weight.lua: sets the weight of the lines that need a limit, or one key of it.
-- KEYS  see `definitions.lua`
-- ARGV  2   field of the limit and key
--       3   weight; 0 removes it
--       4   for how long (us); 0 for ever
--       5   about: JSON, who does it and why

work_without_memory()
local requirement, weight, lasts = requirement_of(ARGV[2]), ARGV[3], tonumber(ARGV[4])
open_record(requirement)
local ends = weight ~= '0' and lasts > 0 and now + lasts or 0
local set, old_ends, rules, old = read_weight(requirement)
write_weight(requirement, weight, format_integer(ends), rules)
local new = weight ~= '0' and weight or rules
if set ~= weight or old_ends ~= format_integer(ends) then
  record_change('weight', requirement.field, weight_text(old), weight_text(new), ARGV[5], ends)
end
remove_ended(requirement.name)
