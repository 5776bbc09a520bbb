-- line_needs.lua: whether the tasks of a line need a limit, given by its name and, for one key of it, by its field.
-- uses: line_data

local function needs_limit(descriptor, name, field)
  if name == '' then
    return true
  end
  for _, limit_keys in ipairs(descriptor.limits) do
    if limit_keys[NAME] == name and (field == '' or limit_keys[FIELD] == field) then
      return true
    end
  end
  return false
end
