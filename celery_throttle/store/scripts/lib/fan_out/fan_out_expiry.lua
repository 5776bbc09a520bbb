-- fan_out_expiry.lua: sets or removes the expiry of all keys of a fan-out.
-- uses: clock, fan_out
--
-- Returns the function that does it: `is_kept` is true while tasks wait.

return function(record, is_kept)
  local fields = redis.call('HMGET', record, 'pause', 'keep')
  local names = { record, record .. ':ended', record .. ':queues' }
  for number = 0, FAN_OUT_NUMBERS - 1 do
    names[#names + 1] = record .. ':' .. number
  end
  names[#names + 1] = fields[1] or nil
  for _, name in ipairs(names) do
    if is_kept then
      redis.call('PERSIST', name)
    else
      redis.call('PEXPIRE', name, expiry_ms(tonumber(fields[2])))
    end
  end
end
