-- withdraw_lines.lua: claims the first tasks of lines, without quota, so that they leave their lines for good.
-- uses: lease_clock, line_removal, scores, counters
-- KEYS  1    zset: workers -> end of their lease (us)
--       2    hash: claims of the caller, see `line_data.lua`
--       3-6  the queue's lines, messages, due, asks
--       then lines of this queue; then the head of the totals, see `counters.lua`
-- ARGV  1    now (us), or '' for the server's clock
--       2    the caller, which has a lease like a worker
--       3    lease (us)
--       4    the token of the first task claimed; the following ones count up
--       5    only tasks that joined their lines by this time (us)
--       6    how many tasks at most are looked at
--       7    where to begin in the first line: '-inf', then the score that the last call replied
-- Reply {number of lines that are done, score at which the next one goes on, {token, message, task id}, ...}
-- Between two calls workers claim from the same lines, and park.

local workers, claims, queue = KEYS[1], KEYS[2], { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local token, cutoff, room = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local taken = {}

-- Split the first tasks of a line, from a score on: {ids, rows, scores} of those to claim, and the score at which to
-- go on; nil at the end of the line. Tasks of one rank are in the order in which they joined, so those behind one
-- that is too new are skipped.
local function read_tasks(line, from)
  local entries = redis.call('ZRANGE', line, from, '+inf', 'BYSCORE', 'LIMIT', 0, room, 'WITHSCORES')
  local next_score = #entries == 2 * room and '(' .. entries[#entries] or nil
  room = room - math.max(1, #entries / 2)
  local ids = {}
  for i = 1, #entries, 2 do
    ids[#ids + 1] = entries[i]
  end
  local rows = #ids > 0 and read_many('HMGET', queue[MESSAGES], ids, 1, #ids) or {}
  local found = { ids = {}, rows = {} }
  for i, row in ipairs(rows) do
    local unpacked = row and cmsgpack.unpack(row) -- none: the server has lost it
    if unpacked and unpacked[PARKED] > cutoff then
      return found, format_integer((rank_of(tonumber(entries[2 * i])) + 1) * RANK_SPAN)
    elseif unpacked then
      found.ids[#found.ids + 1], found.rows[#found.rows + 1] = ids[i], { row, unpacked }
    end
  end
  return found, next_score
end

-- Claim tasks of a line, and remove them from it last.
local function claim_tasks(line, found)
  local described = redis.call('HGET', queue[LINES], line)
  if not described or #found.ids == 0 then
    return
  end
  local limit_index, descriptor = unpack_descriptor(described)
  local claim_head, values = pack_claim_head(line, string.sub(described, 2)), {}
  for i, id in ipairs(found.ids) do
    local packed, row = unpack(found.rows[i])
    values[#values + 1], values[#values + 2] = token, claim_head .. cmsgpack.pack(id, row[SCORE], packed)
    taken[#taken + 1] = { token, row[MESSAGE], id }
    token = token + 1
  end
  call_with('HSET', claims, values)
  remove_from_line(line, descriptor, limit_index, found.ids)
  increase_totals(descriptor, 'removed', #found.ids)
end

-- A server that is out of memory runs a script whose first write frees memory.
redis.call('ZREM', workers, 'nobody')
follow_clock(workers)
-- With a lease the claims are requeued, whatever becomes of the caller.
write_lease(workers, ARGV[2], now + tonumber(ARGV[3]))
local done, score = 0, ARGV[7]
while room > 0 and done < #KEYS - 7 do
  local line, found = KEYS[7 + done], nil
  found, score = read_tasks(line, score)
  claim_tasks(line, found)
  if not score then
    done, score = done + 1, '-inf'
  end
end
end_lease(workers, ARGV[2], claims)
return { done, score, unpack(taken) }
