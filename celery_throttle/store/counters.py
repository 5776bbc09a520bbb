"""The counters that the scripts keep of each limit; see ``counters.lua``.

A counter is of a name, not of its keys. A task that needs several limits counts at each of them.
"""

from __future__ import annotations

#: Refusals of calls outside lines, by reason: no units or slots are left, the limit is paused, its
#: key cap is full, or the cost can never pass.
REFUSALS = ("limit", "slots", "paused", "keys", "cost")

#: Tasks that did not join a line, by reason: they would wait longer than their ``max_wait``, as
#: many tasks wait as may, the key cap is full, or the cost can never pass.
DROPS = ("late", "full", "keys", "cost")

#: The number of buckets of waits, and the longest wait of the first one in seconds. Each following
#: bucket is twice as long. Twin: ``claim_totals.lua``.
WAIT_BUCKETS, _FIRST_WAIT_SECONDS = 21, 0.1

#: The longest wait of each bucket in seconds; the last one has all others.
WAIT_BOUNDS = (*(_FIRST_WAIT_SECONDS * 2**n for n in range(WAIT_BUCKETS - 1)), float("inf"))

#: All counters: their fields in the totals, and what they count. Units are in millionths, times in
#: microseconds.
COUNTERS = {
    "granted": "units taken, including those that were given back later",
    "refunded": "units that a settlement gave back",
    **{f"refused_{reason}": "refused calls" for reason in REFUSALS},
    "parked": "tasks that joined a line",
    **{
        f"wait_{n}": "tasks claimed from a line with their units, by wait"
        for n in range(WAIT_BUCKETS)
    },
    "waited": "their waits in all",
    "handed_out": "tasks taken from a line without units: they had expired, or could never pass",
    "requeued": "claimed tasks that went back to their lines, also from quarantine",
    "lost_claims": "claims whose worker was lost",
    **{f"dropped_{reason}": "tasks that did not join a line" for reason in DROPS},
    "revoked": "tasks revoked while they waited",
    "discarded": "tasks discarded while they waited",
    "broker_waits": "tasks that began to wait at the broker, in no line",
    "api_refusals": "answers of an API that refused a request",
}
