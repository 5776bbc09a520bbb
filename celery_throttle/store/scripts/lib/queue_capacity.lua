-- queue_capacity.lua: whether there is room for one task more that waits at some limits.
-- uses: lines
--
-- Library, of those who put tasks into lines.

-- Where the keys of refs are counted, see `key_cap.lua`; nil if nowhere.
local function crowds_of(refs)
  local crowds
  for _, ref in ipairs(refs) do
    if ref.crowd then
      crowds = crowds or {}
      crowds[#crowds + 1] = { ref.crowd, ref.entries }
    end
  end
  return crowds
end

-- How many more tasks may join lines at a ref; and its `max-waiting`, or 0 if the queue of a leaky-queue has
-- less room than that.
local function measure(ref, names)
  ref.waiting = tonumber(redis.call('GET', names[BACKLOG]) or 0)
  local space = { room = math.huge, most = ref.max_waiting or 0 }
  if space.most > 0 then
    space.room = space.most - ref.waiting
  end
  for _, limit in ipairs(ref.limits) do
    if limit.tag == LEAKY_QUEUE then
      -- What has not leaked yet takes room in the queue, too.
      local own = limit.burst - ref.waiting - math.ceil(limit.used / limit.p)
      if own < space.room then
        space.room, space.most = own, 0
      end
    end
  end
  ref.space = space
end

-- Which of some refs, once they were measured, has no room; nil if all have.
local function full(refs)
  for i, ref in ipairs(refs) do
    if ref.space.room <= 0 then
      return i
    end
  end
end
