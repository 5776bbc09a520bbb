-- set_weight.lua: sets the weight of the lines that need a limit, or one key of it.
-- uses: changes
-- KEYS  1   hash: definitions of limits in force, and weights
--       2   hash: layers, see `definition_layers.lua`; the weight of the rules file under 'rules weight ' and the field;
--           'set weight ' and the field if the weight in force was set at run time for ever
--       3   zset: keys of the name with a definition or weight of their own; '' for the name itself
--       4   stream: changes, see `changes.lua`
-- ARGV  1   now (us), or '' for the server's clock
--       2   field of the limit and key
--       3   weight; '' removes it
--       4   for how long (us); 0 for ever
--       5   about: JSON, who does it and why
--       6   the key; '' for the name itself

-- A server that is out of memory runs a script whose first write needs no memory.
redis.call('HDEL', KEYS[2], '')
local field, weight, lasts, key = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6]
local old = redis.call('HGET', KEYS[1], 'weight ' .. field)
local below = redis.call('HGET', KEYS[2], 'rules weight ' .. field) or ''
local new = weight == '' and below or weight
local ends = new ~= '' and lasts > 0 and now + lasts or 0
local tail = ends > 0 and ' ' .. format_integer(ends) .. ' ' .. below or ''
if weight == '' or lasts > 0 then
  redis.call('HDEL', KEYS[2], 'set weight ' .. field)
else
  redis.call('HSET', KEYS[2], 'set weight ' .. field, '1')
end
if new == '' then
  redis.call('HDEL', KEYS[1], 'weight ' .. field)
else
  redis.call('HSET', KEYS[1], 'weight ' .. field, new .. tail)
end
if key ~= '' then
  if new ~= '' or redis.call('HEXISTS', KEYS[1], field) == 1 then
    redis.call('ZADD', KEYS[3], 0, key)
  else
    redis.call('ZREM', KEYS[3], key)
  end
end
if (old or '') ~= new .. tail then
  record_change('weight', field, string.match(old or '', '^%d*'), new, ARGV[5], ends)
end
