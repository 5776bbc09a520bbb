-- fan_out_expiry.lua: returns a function that sets the expiry of all keys of a fan-out, or removes it (`is_kept`)
-- while tasks wait.
-- uses: clock, fan_out

return function(record, is_kept)
  local fields = redis.call('HMGET', record, 'pause', 'pause_origin', 'keep')
  local names = { record, record .. ':ended', record .. ':queues' }
  for number = 0, FAN_OUT_NUMBERS - 1 do
    names[#names + 1] = record .. ':' .. number
  end
  names[#names + 1] = fields[1] or nil
  names[#names + 1] = fields[2] or nil
  for _, name in ipairs(names) do
    if is_kept then
      redis.call('PERSIST', name)
    else
      redis.call('PEXPIRE', name, expiry_ms(tonumber(fields[3])))
    end
  end
end
