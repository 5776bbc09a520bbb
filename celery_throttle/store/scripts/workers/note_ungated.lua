-- note_ungated.lua: notes tasks with limits whose starts do not pass the gate of a worker.
-- KEYS  1   zset `ungated`: 'slots ' or '' and the name of a task -> when (us) a worker last saw such a start
-- ARGV  2   for how long (us) a note is kept
--       then the names: with 'slots ' in front if the task's slots are released before its end

local ungated, kept = KEYS[1], tonumber(ARGV[2])
-- First, as it needs no memory.
redis.call('ZREMRANGEBYSCORE', ungated, '-inf', format_integer(now - kept))
for i = 3, #ARGV do
  redis.call('ZADD', ungated, format_integer(now), ARGV[i])
end
redis.call('PEXPIRE', ungated, expiry_ms(kept))
