-- release.lua: give slots back.
-- uses: lines
--
-- KEYS  per limit: entries, waits
-- ARGV  1   now (us), or '' for the server's clock
--       2   who holds the slots

local now = clock(ARGV[1])
for key = 1, #KEYS, 2 do
  release(KEYS[key], KEYS[key + 1], ARGV[2], now)
end
