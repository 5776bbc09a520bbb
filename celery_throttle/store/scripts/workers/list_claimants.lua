-- list_claimants.lua: lists who has claims: workers, and commands that take tasks out of lines.
-- KEYS  1   zset: workers -> end of their lease (us)
-- Reply their names

return redis.call('ZRANGE', KEYS[1], '(0', '+inf', 'BYSCORE')
