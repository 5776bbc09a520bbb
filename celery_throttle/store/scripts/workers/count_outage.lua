-- count_outage.lua: adds an outage of one worker to the length of all outages.
-- KEYS  1   string: for how long (us) workers were in outage mode, summed over workers
-- ARGV  1   how long (us) the worker was in outage mode

-- For how long (ms) the sum is kept after the last outage: as long as the totals of limits, eight days.
local OUTAGES_KEPT_MS = 691200000

redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], OUTAGES_KEPT_MS)
