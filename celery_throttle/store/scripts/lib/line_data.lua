-- line_data.lua: what is stored of lines, and where it is in packed tables.
--
-- A line holds the waiting tasks of one queue that need one set of limits and keys. A line with tasks waits at
-- exactly one of these limits, the one that blocked it last: it is in the waiting list of its queue at that limit and
-- key. Only `celery_throttle/store/keys.py` builds names of keys; scripts are passed them and store them with the
-- line.
--
--   line               zset    task id -> score: priority, then age; see `rank_of`
--   <queue>.lines      hash    line -> index of the limit at which it waits (one byte), then its packed descriptor
--   <queue>.messages   hash    task id -> packed row: {line, costs, expires, parked, message, score, key caps,
--                              position, settles, surplus}
--   <queue>.due        zset    waiting list -> when (us) its limit next has room for the first line
--   <queue>.polls      zset    channel of a worker -> when (us) it polls next; WRITTEN, see `leases.lua`; and GAP,
--                              see `queue_poll.lua`
--   waiting            zset    the waiting list: lines of one queue that wait at one limit and key -> score, see
--                              `waiting_lists.lua`
--   backlog            string  number of tasks that wait at one limit and key, over all queues
--   waiting-lists      hash    waiting list -> packed {due, polls} of its queue, for one limit and key
--   waiting-list-index set     the keys `waiting-lists` of one limit's name
--   claims             hash    of a worker: token -> packed {line, descriptor, task id, score, packed row, marks}; see
--                              `settlement.lua` for the claims that have marks
--
-- The descriptor of a line is a table:
--   queue      {lines, messages, due, polls}
--   limits     for each limit and key: {name, field, state, entries, pause, pause of the key, backlog, waiting,
--              waiting-lists, waiting-list-index}
--   key_caps   for each limit with `max-keys`: {its key cap, entries}. Nil if none had it when the line began: then
--              the line is not counted
--   fan_out    record of the fan-out whose tasks the line holds; nil if none
--   surplus    {surplus line of this line, its waiting list}, if of the tasks of this line only one may wait; nil if all
--              may
--   temporary  the zset of `heartbeat.lua`, if the broker deletes the queue with its last consumer; nil if not
--   weight     of the line, when it was loaded last; nil for 1
-- If the server has lost a descriptor, only the waiting list is known: `limits` then has nothing but that at index 0.
-- Other lost keys are rebuilt, see `repair.lua`.
--
-- The surplus line of a line has the tasks that are to end as revoked, as another one of their line waits in their stead.
-- Its descriptor has the limits of that line, but it waits at none of them: the index is 0, and `limits` has at index 0
-- the waiting list of all surplus lines of the queue, which is always due. Its tasks are claimed without units.
--
-- The server does not roll back a script that fails in the middle, for example for a missing right. So a script
-- writes a task to where it goes before it takes the task from where it was, and the row of the task last of all that
-- makes it wait: a task with a row waits for certain. A line that such a script leaves incomplete is repaired when it
-- is next used; backlogs are right again when nothing waits.

-- Positions in `queue`.
local LINES, MESSAGES, DUE, POLLS = 1, 2, 3, 4

-- Positions in `limits`.
local NAME, FIELD, STATE, ENTRIES, PAUSE, KEY_PAUSE = 1, 2, 3, 4, 5, 6
local BACKLOG, WAITING, WAITING_LISTS, WAITING_LIST_INDEX = 7, 8, 9, 10

-- Positions in a row. `position` is that of the task when it joined its line. `settles`: true if its run corrects its
-- costs, else nil. `surplus`: true if it is to end as revoked, else nil.
local LINE, COSTS, EXPIRES, PARKED, MESSAGE, SCORE, KEY_CAPS, POSITION, SETTLES, SURPLUS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- The scores of tasks in a line and of lines in a waiting list begin with a rank: 8 bits from the priority of a task;
-- lower ranks come first. 45 bits follow, see `next_task_score` and `waiting_lists.lua`. A double holds a score exactly.
local RANK_SPAN = 2 ^ 45

-- The rank of a score; nil for nil.
local function rank_of(score)
  return score and math.floor(score / RANK_SPAN)
end

-- The score of a task that joins the end of its line. Within a rank tasks are ordered by age, in units of 64 us. The
-- clock may stand still or be set back, so the score is above that of the last task of the rank.
local function next_task_score(line, rank)
  local from, to = rank * RANK_SPAN, (rank + 1) * RANK_SPAN - 1
  local last = redis.call('ZRANGE', line, to, from,
                          'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
  local score = from + math.floor(now / 64)
  return last[2] and math.max(score, tonumber(last[2]) + 1) or score
end

-- Microseconds that the first task of a line has waited; nil if the line is empty.
local function oldest_wait(line)
  local score = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')[2]
  return score and math.max(0, math.floor(now - score % RANK_SPAN * 64))
end

-- Microseconds that a task has waited, by its row; 0 if the clock was set back since it joined its line.
local function wait_of(row)
  return math.max(0, now - row[PARKED])
end

-- The packed row of a task that joins its line now.
local function pack_row(line, costs, expires, message, score, key_caps, position, settles)
  -- Without holes, so that it is packed as an array.
  return cmsgpack.pack({ line, costs, expires, now, message, score, key_caps or false, position, settles })
end

-- Unpack a row. Nil if it is damaged, or was written by another version in a way that this one cannot read: its task
-- must not stop the others.
local function unpack_row(packed)
  local is_unpacked, row = pcall(cmsgpack.unpack, packed)
  if is_unpacked and type(row) == 'table' and type(row[LINE]) == 'string' and type(row[COSTS]) == 'table'
      and type(row[EXPIRES]) == 'number' and type(row[PARKED]) == 'number' and type(row[MESSAGE]) == 'string'
      and type(row[SCORE]) == 'number' then
    return row
  end
end

local function pack_descriptor(limit_index, descriptor)
  return string.char(limit_index) .. cmsgpack.pack(descriptor)
end

-- Unpack what `pack_descriptor` returns. Nil if it is damaged: its line must not stop the others.
local function unpack_descriptor(packed)
  local limit_index, is_unpacked, descriptor = string.byte(packed, 1), pcall(cmsgpack.unpack, string.sub(packed, 2))
  if is_unpacked and type(descriptor) == 'table' and (descriptor.limits or {})[limit_index] then
    return limit_index, descriptor
  end
end

-- The head of a packed claim: an array of five elements (byte 149), its line and its packed descriptor. The packed
-- id, score and row of the task follow.
local function pack_claim_head(line, packed_descriptor)
  return '\149' .. cmsgpack.pack(line) .. packed_descriptor
end

-- A packed claim with the marks of its units: an array of six elements (byte 150).
local function add_marks(claim, marks)
  return '\150' .. string.sub(claim, 2) .. cmsgpack.pack(marks)
end

-- Unpack a claim, or a task in quarantine. Nil if it is damaged: it must not stop the others, and stays, as nobody knows
-- whether its task can be saved.
local function unpack_claim(packed)
  local is_unpacked, claim = pcall(cmsgpack.unpack, packed)
  if is_unpacked and type(claim) == 'table' and type(claim[1]) == 'string' and type(claim[2]) == 'table'
      and type(claim[2].queue) == 'table' and type(claim[2].limits) == 'table' and type(claim[3]) == 'string'
      and tonumber(claim[4]) and type(claim[5]) == 'string' then
    return unpack(claim)
  end
end

-- Whether the tasks of a line need a limit, given by its name and, for one key of it, by its field; '' for any.
local function needs_limit(descriptor, name, field)
  if name == '' then
    return true
  end
  for _, limit_keys in ipairs(descriptor.limits) do
    if limit_keys[NAME] == name and (field == '' or limit_keys[FIELD] == field) then
      return true
    end
  end
  return false
end

-- The holder of the slots of a task: a worker, its token for the claim or for the task at its gate, and the task's id.
local function holder_of(worker, token, id)
  return worker .. ' ' .. token .. ' ' .. id
end

-- The costs of a task, nil if its id is nil or they cannot be read; and the bytes of its row, of which only the line and
-- the costs are unpacked, not the message.
local function read_costs(messages, id)
  local row = id and redis.call('HGET', messages, id)
  if not row then
    return nil, 0
  end
  local is_unpacked, _, _, costs = pcall(cmsgpack.unpack_limit, row, COSTS, 1)
  return is_unpacked and type(costs) == 'table' and costs or nil, #row
end
