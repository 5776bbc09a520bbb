-- line_data.lua: what is stored of lines, and where it is in packed tables.
--
-- A line holds the waiting tasks of one queue that need one set of limits and keys. A line with tasks waits at
-- exactly one of these limits, the one that blocked it last: it is in the waiting list of its queue at that limit and
-- key. Only `celery_throttle/store/keys.py` builds names of keys; scripts are passed them and store them with the
-- line.
--
--   line               zset    task id -> score: priority, then age; see `scores.lua`
--   <queue>.lines      hash    line -> index of the limit at which it waits (one byte), then its packed descriptor
--   <queue>.messages   hash    task id -> packed row: {line, costs, expires, parked, message, score, key caps,
--                              position}
--   <queue>.due        zset    waiting list -> when (us) its limit next has room for the first line
--   <queue>.polls      zset    channel of a worker -> when (us) it polls next; and WRITTEN, see `leases.lua`
--   waiting            zset    the waiting list: lines of one queue that wait at one limit and key -> score, see
--                              `fair_queue.lua`
--   backlog            string  number of tasks that wait at one limit and key, over all queues
--   waiting-lists      hash    waiting list -> packed {due, polls} of its queue, for one limit and key
--   waiting-list-index set     the keys `waiting-lists` of one limit's name
--   claims             hash    of a worker: token -> packed {line, descriptor, task id, score, packed row}
--
-- The descriptor of a line is a table:
--   queue      {lines, messages, due, polls}
--   limits     for each limit and key: {name, field, state, entries, pause, pause of the key, backlog, waiting,
--              waiting-lists, waiting-list-index}
--   key_caps   for each limit with `max-keys`: {its key cap, entries}. Nil if none had it when the line began: then
--              the line is not counted
--   fan_out    record of the fan-out whose tasks the line holds; nil if none
--   temporary  the zset of `heartbeat.lua`, if the broker deletes the queue with its last consumer; nil if not
--   weight     of the line, when it was loaded last; nil for 1
-- If the server has lost a descriptor, only the waiting list is known: `limits` then has nothing but that at index 0.
-- Other lost keys are rebuilt, see `repair.lua`.
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

-- Positions in a row. `position` is that of the task when it joined its line.
local LINE, COSTS, EXPIRES, PARKED, MESSAGE, SCORE, KEY_CAPS, POSITION = 1, 2, 3, 4, 5, 6, 7, 8
