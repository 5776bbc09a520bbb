-- read.lua: runs commands that only read, each with one key, as a pipeline in which all see the same state.
-- KEYS  of each command
-- ARGV  from 2 on: per command: its name, how many arguments follow the key, these arguments
-- Reply {now (us), reply of each command, ...}

local reply, position = { format_integer(now) }, 2
for i, key in ipairs(KEYS) do
  local last = position + 1 + ARGV[position + 1]
  reply[i + 1] = redis.call(ARGV[position], key, unpack(ARGV, position + 2, last))
  position = last + 1
end
return reply
