-- set_weight.lua: sets the weight of the lines that need a limit, or one key of it.
-- uses: change_weight, changes
-- KEYS  1-4 see `change_definition.lua`
--       5   zset: keys of the name with a definition or weight of their own
-- ARGV  1   now (us), or '' for the server's clock
--       2   name
--       3   field of the limit and key
--       4   weight; 0 removes it
--       5   for how long (us); 0 for ever
--       6   about: JSON, who does it and why

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', KEYS[2], '')
local requirement = { name = ARGV[2], field = ARGV[3], own_keys = KEYS[5] }
local weight, lasts = ARGV[4], tonumber(ARGV[5])
local ends = weight ~= '0' and lasts > 0 and now + lasts or 0
local set, old_ends, rules, old = read_weight(requirement)
write_weight(requirement, weight, format_integer(ends), rules)
local new = weight ~= '0' and weight or rules
if set ~= weight or old_ends ~= format_integer(ends) then
  record_change('weight', requirement.field, weight_text(old), weight_text(new), ARGV[6], ends)
end
