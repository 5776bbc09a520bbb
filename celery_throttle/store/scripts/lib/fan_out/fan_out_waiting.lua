-- fan_out_waiting.lua: changes the number of waiting tasks of a fan-out. If its record has expired, it stays so.
-- uses rarely: fan_out_expiry

local function change_fan_out_waiting(record, change)
  if redis.call('EXISTS', record) == 0 then
    return
  end
  local waiting = redis.call('HINCRBY', record, 'waiting', change)
  if waiting <= 0 then
    fan_out_expiry()(record, false)
  elseif waiting == change then
    fan_out_expiry()(record, true)
  end
end
