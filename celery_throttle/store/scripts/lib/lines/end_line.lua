-- end_line.lua: a line begins with its first task and ends with its last.
-- uses: line_data
-- uses rarely: key_cap

-- Count a line that begins (1) or ends (-1) in its key caps: while a line holds tasks, its keys are in use.
local function count_in_key_caps(descriptor, change)
  for _, key in ipairs(descriptor.key_caps or {}) do
    key_cap().count_line(key[1], key[2], change)
  end
end

-- Forget a line that has no tasks any more.
local function end_line(line, descriptor)
  local queue = descriptor.queue
  redis.call('HDEL', queue[LINES], line)
  count_in_key_caps(descriptor, -1)
  if descriptor.temporary and redis.call('EXISTS', queue[LINES]) == 0 then
    redis.call('ZREM', descriptor.temporary, queue[LINES])
  end
end
