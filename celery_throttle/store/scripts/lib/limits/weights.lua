-- weights.lua: reads the weights that `set_weight.lua` writes.
-- uses: clock

-- The weight in force of a text; nil for none. One that ends by itself is followed by its end (us) and by the weight
-- after that.
local function weight_in_force(text)
  local weight = text and tonumber(text)
  if weight or not text then
    return weight
  end
  local own, ends, below = string.match(text, '^(%d+) (%d+) ?(%d*)$')
  return tonumber(tonumber(ends) > now and own or below)
end
