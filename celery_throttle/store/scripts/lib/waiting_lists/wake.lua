-- wake.lua: wakes up to two workers that would otherwise poll after `due` (us). Workers whose poll lies in the past
-- are busy or gone. `polls` is that key of a queue.
-- uses: clock

local function wake(polls, due)
  local next_polls = redis.call('ZRANGE', polls, format_integer(now), '+inf', 'BYSCORE',
                                'LIMIT', 0, 2, 'WITHSCORES')
  for i = 1, #next_polls, 2 do
    if tonumber(next_polls[i + 1]) > due then
      redis.call('PUBLISH', next_polls[i], '')
    end
  end
end
