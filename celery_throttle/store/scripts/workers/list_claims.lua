-- list_claims.lua: lists the claims of a worker.
-- KEYS  1   hash: claims of the worker, see `line_data.lua`
-- Reply their tokens

return redis.call('HKEYS', KEYS[1])
