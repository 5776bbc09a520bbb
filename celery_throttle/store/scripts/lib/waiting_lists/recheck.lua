-- recheck.lua: makes all waiting lists of a limit and key due, after it has changed; `lists` is the hash of them.
-- Wakes workers, unless the table `wake_later` is given: that gets {due, polls} of each queue.
-- uses: wake

local function recheck(lists, wake_later)
  local found = redis.call('HGETALL', lists)
  for i = 1, #found, 2 do
    local queue_keys = cmsgpack.unpack(found[i + 1])
    redis.call('ZADD', queue_keys[1], 'XX', format_integer(now), found[i])
    if wake_later then
      wake_later[#wake_later + 1] = queue_keys
    else
      wake(queue_keys[2], now)
    end
  end
end
