-- fan_out_waiting.lua: counts the waiting tasks of a fan-out.
-- uses rarely: fan_out_expiry

-- Change the number of its tasks that wait. If the record has expired, it stays so.
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
