-- read_stored.lua: reads what is known of some limits, or keys of them, but for the states of their algorithms.
-- KEYS  1   hash: definitions of limits
--       2   zset: limits of which tasks of workers need keys, see `heartbeat.lua`
--       then per limit or key: pause, its origin, paused keys of the name, keys of the name with a definition or weight of
--       their own, backlog
--       last: head of the totals
-- ARGV  from 2 on: per limit or key: name, field
-- Reply {now (us), per limit or key: {layer of the definition, or '' if it is not defined; since when (us) it is in
--        force; the limits as text; when (us) it ends by itself, 0 for never; when (us) it was given; JSON: who gave it;
--        weight; for how long (us) it is paused; when (us), and JSON: by whom; how many keys are paused; how many keys
--        have a definition or weight of their own; tasks that wait; keys with waiting tasks; {counter, total, ...}; 1 if
--        tasks of a worker need keys of it, else 0}}

local function describe_definition(row, name, field)
  local found = redis.call('HMGET', KEYS[1], field, name)
  local record = record_in_force(found[1], found[2])
  if not record then
    row[1], row[2], row[3], row[4], row[5], row[6] = '', '0', '', '0', '', ''
    return
  end
  local definition, layer = definition_in(record)
  row[1], row[2], row[3] = layer, format_integer((times_in(record))), definition.text
  row[4], row[5], row[6] = format_integer(definition.ends), format_integer(definition.at), definition.about
end

local reply = { format_integer(now) }
for i = 1, (#KEYS - 3) / 5 do
  local key, name, field, row = 5 * i - 2, ARGV[2 * i], ARGV[2 * i + 1], {}
  describe_definition(row, name, field)
  local weights = redis.call('HMGET', KEYS[1], 'weight ' .. field, 'weight ' .. name)
  row[7] = weight_in_force(weights[1]) or weight_in_force(weights[2]) or 1
  row[8] = format_integer(pause_left(KEYS[key], redis.call('GET', KEYS[key])))
  row[9] = redis.call('GET', KEYS[key + 1]) or ''
  local backlogs, waiting = KEYS[#KEYS] .. name .. '/keys', tonumber(redis.call('GET', KEYS[key + 4]) or 0)
  row[10], row[11], row[12], row[13] = 0, 0, waiting, 0
  if field == name then
    row[10] = redis.call('ZCOUNT', KEYS[key + 2], '(' .. format_integer(now), '+inf')
    row[11] = redis.call('ZCARD', KEYS[key + 3])
    row[12] = waiting + (redis.call('ZSCORE', backlogs, '') or 0)
    row[13] = math.max(0, redis.call('ZCARD', backlogs) - 1)
  end
  row[14] = redis.call('HGETALL', KEYS[#KEYS] .. name)
  row[15] = field == name and redis.call('ZSCORE', KEYS[2], name) and 1 or 0
  reply[i + 1] = row
end
return reply
