"""Totals: what became of requests and tasks at a limit, as the scripts have counted it.

A counter is of a name, not of its keys. A task that needs several limits counts at each of them.
See ``counters.lua``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf

from celery_throttle.limits.cost import MILLION
from celery_throttle.observe.observer import merge_fields

__all__ = ["WAIT_BOUNDS", "Totals"]

#: Why calls outside lines are refused: no units or slots are left, the limit is paused, as many
#: keys as may are in use, or the cost can never pass.
REFUSAL_REASONS = ("limit", "slots", "paused", "keys", "cost")

#: Why tasks do not join a line: they would wait longer than their ``throttle_max_wait``, as many
#: tasks wait as may, as many keys as may are in use, the cost can never pass, or another task waits
#: and ``throttle_keep_waiting`` is ``"first"``.
DROP_REASONS = ("late", "full", "keys", "cost", "surplus")

#: The field of the totals on the server that is a text: the last refusal by an API. Twin:
#: ``counters.lua``.
LAST_API_REFUSAL = "last_api_refusal"

#: The number of buckets of waits, and the longest wait of the first one in seconds. Each following
#: bucket is twice as long. Twin: ``serve_list.lua``.
WAIT_BUCKETS, FIRST_WAIT_SECONDS = 21, 0.1

#: The longest wait of each of the 21 buckets of :attr:`Totals.waits`, in seconds.
#: They are 0.1, 0.2, 0.4 and so on. Each is twice the previous one; the last one is infinity.
WAIT_BOUNDS: tuple[float, ...] = (
    *(FIRST_WAIT_SECONDS * 2.0**n for n in range(WAIT_BUCKETS - 1)),
    inf,
)


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of a limit, since its totals began or in a period.

    Totals cover the whole limit with all its keys. A task that needs several limits counts at each
    of them. Totals begin at 0 again if they were neither increased nor recorded for eight days.

    Attributes:
        granted: The units taken, for calls and for tasks.
        refunded: The granted units that were given back, by a settlement or because their task was
            not started.
        refused: Pairs of a reason and the number of calls refused for it: ``"limit"`` (too few
            units left), ``"slots"`` (no slot free), ``"paused"``, ``"keys"`` (``max-keys`` keys are
            in use) and ``"cost"`` (above the burst, so the call can never be allowed). A call with
            ``max_wait`` counts once, when it gives up.
        parked: The tasks that joined a line.
        waits: The tasks that were claimed with their units, by the length of their waits. Number n
            counts the tasks that waited longer than ``WAIT_BOUNDS[n - 1]`` seconds, and at most
            ``WAIT_BOUNDS[n]``.
        handed_out: The tasks that left a line without units: they had expired, or their limit was
            not defined, or they cost more than the burst.
        requeued: The claimed tasks that went back to their lines, also from quarantine.
        lost_claims: The claims that ended because the lease of their worker had expired.
        lost_slots: The slots whose lease had expired when another slot was taken. If all leases had
            expired by then, none of them is counted.
        dropped: Pairs of a reason and the number of tasks that did not join a line for that reason:
            ``"late"`` (expected to wait longer than ``throttle_max_wait``), ``"full"``
            (``max-waiting`` tasks wait), ``"keys"`` and ``"cost"`` as for ``refused``, and
            ``"surplus"`` (another task waits, and ``throttle_keep_waiting`` is ``"first"``).
        replaced: The tasks that ended as revoked because another one waits in their line
            (``throttle_keep_waiting``).
        revoked: The tasks that were revoked, or cancelled with their fan-out, while they waited.
        discarded: The waiting tasks that were discarded by ``throttle purge``, or with a queue that
            the broker deletes.
        removed: The tasks that ``drain``, ``move`` or ``drop`` took out of lines.
        broker_waits: The tasks that began to wait at the broker (``throttle_waiting = "broker"``).
        api_refusals: The responses of an API that refused a request, such as 429.
        shadow_refused: The requests that were allowed and that the shadow limits of the name would
            have refused.
    """

    granted: float = 0.0
    refunded: float = 0.0
    refused: tuple[tuple[str, int], ...] = ()
    parked: int = 0
    waits: tuple[int, ...] = (0,) * WAIT_BUCKETS
    handed_out: int = 0
    requeued: int = 0
    lost_claims: int = 0
    lost_slots: int = 0
    dropped: tuple[tuple[str, int], ...] = ()
    replaced: int = 0
    revoked: int = 0
    discarded: int = 0
    removed: int = 0
    broker_waits: int = 0
    api_refusals: int = 0
    shadow_refused: int = 0

    @property
    def claimed(self) -> int:
        """The number of tasks that were claimed from a line with their units."""
        return sum(self.waits)

    @property
    def waited(self) -> float:
        """About how many seconds the claimed tasks waited in all.

        Each counts as the middle of its bucket.
        """
        bounds = (0.0, *WAIT_BOUNDS[:-1], 2 * WAIT_BOUNDS[-2])
        return sum(
            tasks * (bounds[n] + bounds[n + 1]) / 2 for n, tasks in enumerate(self.waits) if tasks
        )

    @property
    def refusals(self) -> int:
        """The number of calls that were refused."""
        return sum(calls for _, calls in self.refused)

    @property
    def drops(self) -> int:
        """The number of tasks that did not join a line."""
        return sum(tasks for _, tasks in self.dropped)

    def wait_quantile(self, share: float) -> tuple[float, float] | None:
        """Return the bucket of the wait that a share of the claimed tasks did not exceed.

        Args:
            share: 0 to 1; 0.5 for the median.

        Returns:
            Two numbers of seconds, between which the wait is; the second may be infinite. None if
            no task was claimed.
        """
        rest = share * self.claimed
        for n, tasks in enumerate(self.waits):
            if tasks and rest <= tasks:
                return WAIT_BOUNDS[n - 1] if n else 0.0, WAIT_BOUNDS[n]
            rest -= tasks
        return None


#: The totals that the scripts count by their names, one by one.
_NUMBERS = tuple(field.name for field in fields(Totals) if field.type == "int")


def add_totals(several: Sequence[Totals]) -> Totals:
    """Return the sum of totals, at least of one."""
    numbers = dict.fromkeys(("granted", "refunded", *_NUMBERS), sum)
    reasons = dict.fromkeys(("refused", "dropped"), _add_reasons)
    return merge_fields(
        several, **numbers, **reasons, waits=lambda found: tuple(map(sum, zip(*found, strict=True)))
    )


def _add_reasons(several: Sequence[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    sums: Counter[str] = Counter()
    for counts in several:
        sums.update(dict(counts))
    return tuple(sums.items())


def read_totals(counters: Mapping[str, float | str]) -> Totals:
    """Return the totals of counters as the scripts name them."""

    def number(name: str) -> int:
        return round(float(counters.get(name, 0)))

    waits = tuple(number(str(n)) for n in range(WAIT_BUCKETS))
    return Totals(
        # A task from a line stands for one unit, and 'granted' has the rest.
        granted=float(counters.get("granted", 0)) / MILLION + sum(waits),
        refunded=float(counters.get("refunded", 0)) / MILLION,
        refused=tuple((reason, number(f"refused_{reason}")) for reason in REFUSAL_REASONS),
        waits=waits,
        dropped=tuple((reason, number(f"dropped_{reason}")) for reason in DROP_REASONS),
        **{name: number(name) for name in _NUMBERS},
    )
