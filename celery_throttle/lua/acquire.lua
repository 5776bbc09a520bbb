-- acquire.lua: decide over any number of limits, all or nothing.
-- uses: decide
--
-- KEYS  1            hash: definitions of limits
--       then per limit: state, backlog, pause, pause of the key
-- ARGV  1            now (us), or '' for the server's clock
--       2            'take' | 'peek'
--       then per limit: name, field, cost
-- Reply {1, remaining, reset (us), burst}                        allowed
--       {0, wait (us), index that binds, remaining, reset (us), burst}       refused
--       {-1, index, burst}                                        can never pass
--       {-2, index}                                               limit not defined
-- A refusal writes nothing.

local given, mode = ARGV[1], ARGV[2]
local now = clock(given)
local refs = read_refs((#KEYS - 1) / 4, 2, 3)
local unknown = look(KEYS[1], refs, now, given)
if unknown then
  return { -2, unknown }
end
local wait, bound = decide(refs)
if wait < 0 then
  return { -1, bound, refs[bound].limit.burst }
end

if wait == 0 and mode ~= 'peek' then
  take(refs, now, now, given, 1)
end
local remaining, reset, narrow = math.huge, 0, 1
for i, ref in ipairs(refs) do
  local own, full = left(ref)
  if i == bound or bound == 0 and own < remaining then
    remaining, narrow = own, i
  end
  reset = math.max(reset, full)
end
if wait == 0 then
  return { 1, remaining, reset, refs[narrow].limit.burst }
end
return { 0, wait, bound, remaining, reset, refs[bound].limit.burst }
