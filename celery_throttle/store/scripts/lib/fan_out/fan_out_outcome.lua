-- fan_out_outcome.lua: records how a task of a fan-out has ended: 'done', 'failed' or 'revoked'. An outcome that is
-- recorded twice counts once. 'done' replaces another outcome: the task may have run once more.
-- uses: fan_out

local function record_fan_out_outcome(record, id, outcome)
  local tasks = record .. ':' .. fan_out_number(id)
  local known = redis.call('HGET', tasks, id)
  if not known or known == outcome or known == 'done' then
    return
  end
  if tonumber(known) then
    redis.call('RPUSH', record .. ':ended', id)
  elseif outcome == 'done' then
    redis.call('HINCRBY', record, known, -1)
  else
    return
  end
  redis.call('HSET', tasks, id, outcome)
  redis.call('HINCRBY', record, outcome, 1)
end
