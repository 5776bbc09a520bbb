"""All constants that tune the worker: horizons, sizes of calls, intervals.

A name ends with its unit: ``SECONDS``, ``US`` (microseconds), ``LEASES`` (lengths of the lease that
``throttle_lease`` sets), or ``SIZE`` and ``COUNT`` for numbers of things. The comment says what the
constant bounds. Imports nothing.
"""

# Units and starts that are booked ahead.

#: How far ahead of its start a task may be admitted, and for how long units may be kept that no
#: task has used. Pacing has no gaps, and no start is later after its admission than this.
BOOKING_HORIZON_SECONDS = 0.020
#: A claim call also claims for processes that will be free within this time, where tasks end fast:
#: so one call claims several tasks. If no recent task took longer, it claims for all processes in
#: which claimed tasks run, each start up to the horizon above.
SOON_FREE_SECONDS = BOOKING_HORIZON_SECONDS / 4
#: How far ahead a start may be booked for a process that is not free, if some tasks take longer.
#: Slower limits are claimed for free processes only, so that none of these tasks has to go back to
#: its line.
SOON_FREE_BOOKING_SECONDS = 0.001

# Polling for claims.

MAX_POLL_INTERVAL_SECONDS = 1.0  # between two claim calls of a worker with a free process
#: The same for each shard but the home shard: there may be many, and a wake-up comes when a line of
#: one may be due.
SHARD_POLL_INTERVAL_SECONDS = 10.0
MIN_WAKEUP_INTERVAL_SECONDS = 0.005  # from the last reply to the poll that a wake-up causes
RESUBSCRIBE_SECONDS = 0.5  # until a worker that has lost the server subscribes to wake-ups again
#: Tasks that one claim call claims at most: the server does nothing else meanwhile. Scripts bound
#: the bytes of tasks that one call reads, see ``commands.lua``.
CLAIM_BATCH_SIZE = 200
CLAIM_RETRY_SECONDS = 1.0  # until a claim call is repeated to which the server replied an error
#: How long a settled claim may stay unreported: the next poll of a busy worker comes sooner. If the
#: worker is killed before, the task runs once more.
SETTLE_REPORT_SECONDS = 0.050
#: Slots that are released sooner than this after the server's last reply are reported together.
RELEASE_REPORT_SECONDS = 0.002
REQUEUE_BATCH_SIZE = 100  # claims that one call requeues: the server does nothing else meanwhile
REVOKED_BATCH_SIZE = 1000  # ids of revoked tasks that one call looks up
#: Time between two comparisons of a worker's claims with those that the server has of it. Reports
#: are remembered for as long, to be repeated to a replica that takes the server's place: more than
#: a replica lags behind.
CLAIM_CHECK_SECONDS = 10.0

# Leases and heartbeats.

#: Time without a claim call after which the lease of the claims is renewed by a call of its own.
LEASE_SILENCE_SECONDS = 1.0
#: Longest time between two heartbeats. The limits and the number of workers that a heartbeat
#: brings are those that an outage is decided with.
MAX_HEARTBEAT_SECONDS = 10.0
#: Definitions that one heartbeat brings at most, weights included. If the server has more, the
#: heartbeat brings those of the names in the code.
HEARTBEAT_DEFINITION_COUNT = 1000
#: How long a thread calls the shards of a cluster one after the other. Then a node probably does
#: not answer, and the shards that are left are called at the same time.
ROUND_SECONDS = 0.25
CONSUMER_LEASES = 10  # how long a worker counts as a consumer of the queues in its heartbeat
UNCONSUMED_LEASES = 2  # how long a worker must see a queue without a consumer to give it up
UNCONSUMED_QUEUE_SECONDS = 86_400.0  # how long the server remembers a queue without a consumer
#: Time until a worker announces where it keeps its limits, to others that may have started with it
#: and do not listen yet.
ANNOUNCEMENT_DELAY_SECONDS = 3.0

# The rules file.

RULES_POLL_SECONDS = 5.0  # between two looks; new content counts when two looks have found it
RULES_REPORT_SECONDS = 60.0  # how long the report of a worker about its file counts

# The gate.

#: How long requests that come fast, one by one, are gathered for one call: it takes their units, or
#: parks those that a limit refuses.
GATHER_SECONDS = 0.004
QUOTA_BATCH_SIZE = 7  # requests that one call takes units for, beside the one that has a process
QUOTA_CACHE_SIZE = 1024  # requirements with remembered units, or a remembered refusal
#: How long tasks join their line without a call of the gate before, once one has joined it. The
#: call that parks a task decides as well.
PARKED_MEMORY_SECONDS = 1.0
DEMAND_CACHE_SIZE = 4096  # requirements with counted demand; beyond, all are counted anew
#: Requests decided, and tasks parked, in one round trip of `DecisionBatch`; the bytes of their
#: messages from which on no other is added; and the time until the next round: the ends of tasks
#: are noted in between.
DECISION_BATCH_SIZE = 8
DECISION_BATCH_BYTES = 1_000_000
NEXT_ROUND_SECONDS = 0.0001
WAIT_IN_PLACE_SECONDS = 0.0003  # to a start that is waited in place: a timer would take longer
RETRY_SECONDS = 1.0  # until a request comes again for which the server replied an error

# Functions of limits and costs.

#: The functions of a task are called in place after this many calls in a row that took less than
#: the seconds. Hardly any call over a network takes so little.
FAST_FUNCTION_CALLS = 20
FAST_FUNCTION_SECONDS = 0.0002
#: They are called in threads again after this many calls in a row that took longer, or after one
#: that blocked the worker for the seconds. Then ten times as many fast calls are needed, up to a
#: maximum.
SLOW_FUNCTION_CALLS = 5
BLOCKING_SECONDS = 0.1
MAX_FAST_FUNCTION_CALLS = 10_000
LOGGED_FUNCTION_SECONDS = 1.0  # a call in place that takes longer is logged
FUNCTION_SECONDS = 10.0  # after which a task fails whose functions have not returned
FUNCTION_THREADS = 4  # that call the functions of one task

# Tasks that wait.

#: A task that is expected to wait for less is not shown as waiting in the result backend: another
#: worker may store its result meanwhile.
MIN_SHOWN_WAIT_SECONDS = 0.1
REDELIVERY_MEMORY_SECONDS = 86_400  # how long the server recognises a redelivered message
ACKNOWLEDGED_AFTER_SECONDS = 2.0  # after which an acknowledgement has certainly been sent
BROKER_WAIT_EARLY_SECONDS = BOOKING_HORIZON_SECONDS / 2  # how early it comes from the broker
#: Tasks that wait in the worker without a prefetch slot. Those beyond keep their slots, so that no
#: more messages come in.
MAX_FREED_PREFETCH_SLOTS = 10_000
MIN_REPUBLISH_SECONDS = 2.0  # shortest wait for which a message is sent back to the broker
#: Delay after which the broker delivers a task again that waits for the end of an outage.
OUTAGE_REPUBLISH_SECONDS = 5.0
#: Delayed tasks brought to the gate in one round of the worker's loop, and the time until the next.
DELAYED_ROUND_SIZE = 8
DELAYED_ROUND_SECONDS = 0.001
#: Consumers of one queue of which messages may still come, the active one included.
PREFETCH_CONSUMER_COUNT = 3
#: How long RabbitMQ waits for an acknowledgement if ``consumer_timeout`` is not set.
RABBITMQ_CONSUMER_TIMEOUT_SECONDS = 1800.0
#: How long kombu's transports wait for one if ``visibility_timeout`` is not set.
VISIBILITY_TIMEOUT_SECONDS = 3600.0

# The pool.

POOL_CHECK_SECONDS = 0.004  # between two looks at a pool that reports ends of some tasks only
#: How long a free process of a stopping prefork pool has to begin the task in its pipe. It takes
#: less than a millisecond, unless the machine is busy.
PIPE_BEGIN_SECONDS = 5.0
PIPE_CHECK_SECONDS = 0.1  # between two looks for processes that have died meanwhile

# Slow and lost servers.

#: How long the loop waits for a reply, then a thread does: at least `TICK_SECONDS` of the store.
LOOP_CALL_SECONDS = 0.050
#: If a server is far away, the loop waits three times as long as the fastest of its last calls has
#: taken, but no longer than this.
FAR_CALL_SECONDS = 0.250
RECENT_CALL_COUNT = 8
SLOW_CALL_SECONDS = 0.010  # a longer call is slow: as much time then belongs to all other work
#: Longest rest after a slow call; only a process that stood still has had a longer one.
MAX_REST_SECONDS = 5.0
RECONNECT_SECONDS = 0.5  # between two attempts to reach a lost server
#: Time after an outage, or after this worker stood still, in which no worker is taken for dead: one
#: that lives may not have had the chance to renew its lease.
RECLAIM_GRACE_SECONDS = 5.0
OUTAGE_SLOT_RETRY_US = 100_000  # between two attempts to take a slot during an outage
OUTAGE_SPACING_US = 100  # between two tasks that wait until this worker begins to decide by itself
#: Limits and keys whose shares are kept during an outage; beyond, all begin anew, empty.
OUTAGE_SHARE_COUNT = 10_000

# Reports and logs.

#: Workers that report the limits of one shard each time; more of them take turns.
REPORTING_WORKERS = 4

#: How long outcomes of tasks in fan-outs are gathered, how many one call reports, and the time
#: until a failed report is repeated.
OUTCOME_REPORT_SECONDS = 0.05
OUTCOME_BATCH_SIZE = 500
OUTCOME_RETRY_SECONDS = 1.0
ERROR_LOG_SECONDS = 60.0  # between two log lines on errors of one kind
#: Time between two reports of quarantined tasks, and the queues with task names that one lists.
QUARANTINE_REPORT_SECONDS = 60.0
QUARANTINE_REPORT_COUNT = 10
#: Time between two reports of waiting tasks by any worker, and of the same numbers; and the number
#: of changes of limits that a worker logs after one heartbeat.
STATUS_REPORT_SECONDS = 60.0
SAME_REPORT_SECONDS = 3600.0
LOGGED_CHANGES = 50
