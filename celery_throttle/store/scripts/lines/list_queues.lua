-- list_queues.lua: lists the queues of which tasks wait at a limit, over some of its keys at a time.
-- KEYS  1   set: keys `waiting-lists` of the limit's name
-- ARGV  1   cursor: '0' at first, then the one that the last call replied
-- Reply {cursor of the next call, '0' at the end; {key `due` of a queue, ...}; number of waiting lists that were seen}

local found = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', 500)
local queues, is_listed, lists = {}, {}, 0
for _, key in ipairs(found[2]) do
  for _, queue_keys in ipairs(redis.call('HVALS', key)) do
    lists = lists + 1
    if not is_listed[queue_keys] then -- most are those of a queue that is listed
      is_listed[queue_keys], queues[#queues + 1] = true, cmsgpack.unpack(queue_keys)[1]
    end
  end
end
return { found[1], queues, lists }
