-- scan.lua: reads lines or tasks, some at a time.
-- KEYS  1   hash: the lines or messages of a queue, the claims of a worker, or the tasks in quarantine
-- ARGV  1   which of these: 'lines', 'messages', 'claims' or 'quarantine'
--       2   cursor: '0' at first, then the one that the last call replied
--       3   but for messages, only those whose tasks need the limit of this name; '' for any
--       4   field of one key of the limit, or '' for all its keys
-- Reply {cursor of the next call, '0' at the end; one row, ...}. The rows are {line, number of its tasks, index of the
-- limit at which it waits (0: a surplus line), name of each of its limits, ...}, {task id, message}, {task id} of claims,
-- and {task id, label, key `lines` of its queue} of quarantine.

local read = {
  lines = function(line, packed)
    local limit_index, descriptor = unpack_descriptor(packed)
    if descriptor and needs_limit(descriptor, ARGV[3], ARGV[4]) then
      local row = { line, redis.call('ZCARD', line), limit_index }
      for i, limit_keys in ipairs(descriptor.limits) do
        row[3 + i] = limit_keys[NAME]
      end
      return row
    end
  end,
  messages = function(id, packed)
    local row = unpack_row(packed)
    return row and { id, row[MESSAGE] }
  end,
  claims = function(_, packed)
    local _, descriptor, id = unpack_claim(packed)
    return descriptor and needs_limit(descriptor, ARGV[3], ARGV[4]) and { id }
  end,
  quarantine = function(id, packed)
    local _, descriptor, label = unpack_claim(packed)
    return descriptor and needs_limit(descriptor, ARGV[3], ARGV[4]) and { id, label, descriptor.queue[LINES] }
  end,
}

local cursor, found = scan_hash(KEYS[1], ARGV[2], 100)
local reply = { cursor }
for i = 1, #found, 2 do
  reply[#reply + 1] = read[ARGV[1]](found[i], found[i + 1]) or nil
end
return reply
