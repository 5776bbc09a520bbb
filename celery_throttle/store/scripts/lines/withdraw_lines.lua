-- withdraw_lines.lua: claims the first tasks of lines, without quota, so that they leave their lines for good.
-- KEYS  1    zset: workers -> end of their lease (us)
--       2    hash: claims of the caller, see `line_data.lua`
--       3-6  the queue's lines, messages, due, polls
--       then lines of this queue; then the head of the totals, see `counters.lua`
-- ARGV  2    the caller, which has a lease like a worker
--       3    lease (us)
--       4    the token of the first task claimed; the following ones count up
--       5    only tasks that joined their lines by this time (us), or before the clock was set back
--       6    how many tasks at most are looked at; their bytes are bounded, too
--       7    where to begin in the first line: '-inf', then the score that the last call replied
-- Reply {number of lines that are done, score at which the next one goes on, {token, message, task id}, ...}; the
-- message is empty if the task cannot be read
-- Between two calls workers claim from the same lines, and park.

local workers, claims, queue = KEYS[1], KEYS[2], { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local token, cutoff, room, bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), 0
local taken = {}

-- Read the first tasks of a line, from a score on. Returns {id, packed row, score, message} of each to claim, and the
-- score at which to go on; nil at the end of the line. Tasks of one rank are in the order in which they joined, so those
-- behind one that is too new are skipped.
local function read_tasks(line, from)
  local entries = redis.call('ZRANGE', line, from, '+inf', 'BYSCORE', 'LIMIT', 0, room, 'WITHSCORES')
  local next_score = #entries == 2 * room and '(' .. entries[#entries] or nil
  room = room - math.max(1, #entries / 2)
  local found = {}
  for i = 1, #entries, 2 do
    local id, score = entries[i], entries[i + 1]
    local packed = redis.call('HGET', queue[MESSAGES], id) -- false: the server has lost it
    local row = packed and unpack_row(packed)
    bytes = bytes + (packed and #packed or 0)
    if row and row[PARKED] > cutoff and row[PARKED] <= now + FARTHEST then
      return found, format_integer((rank_of(tonumber(score)) + 1) * RANK_SPAN)
    elseif packed then
      found[#found + 1] = { id, packed, tonumber(score), row and row[MESSAGE] or '' }
    end
    if bytes >= BATCH_BYTES then
      return found, '(' .. score
    end
  end
  return found, next_score
end

-- Claim tasks of a line, and remove them from it last.
local function claim_tasks(line, found)
  local described = redis.call('HGET', queue[LINES], line) or ''
  local limit_index, descriptor = unpack_descriptor(described)
  if not descriptor or #found == 0 then
    return
  end
  local claim_head, values, ids = pack_claim_head(line, string.sub(described, 2)), {}, {}
  for i, task in ipairs(found) do
    local id, packed, score, message = unpack(task)
    values[#values + 1], values[#values + 2] = token, claim_head .. cmsgpack.pack(id, score, packed)
    taken[#taken + 1], ids[i] = { token, message, id }, id
    token = token + 1
  end
  call_with('HSET', claims, values)
  remove_from_line(line, descriptor, limit_index, ids)
  increase_totals(descriptor, 'removed', #ids)
end

work_without_memory()
follow_clock(workers)
-- With a lease the claims are requeued, whatever becomes of the caller.
write_lease(workers, ARGV[2], now + tonumber(ARGV[3]))
local done, score = 0, ARGV[7]
while room > 0 and bytes < BATCH_BYTES and done < #KEYS - 7 do
  local line, found = KEYS[7 + done], nil
  found, score = read_tasks(line, score)
  claim_tasks(line, found)
  if not score then
    done, score = done + 1, '-inf'
  end
end
end_lease(workers, ARGV[2], claims)
return { done, score, unpack(taken) }
