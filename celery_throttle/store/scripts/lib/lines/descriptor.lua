-- descriptor.lua: packs the descriptor of a line, see `line_data.lua`.

local function pack_descriptor(limit_index, descriptor)
  return string.char(limit_index) .. cmsgpack.pack(descriptor)
end

local function unpack_descriptor(packed)
  return string.byte(packed, 1), cmsgpack.unpack(string.sub(packed, 2))
end

-- The head of a packed claim: an array of five elements (byte 149), its line and its packed descriptor. The packed
-- id, score and row of the task follow.
local function pack_claim_head(line, packed_descriptor)
  return '\149' .. cmsgpack.pack(line) .. packed_descriptor
end
