"""Totals: what became of requests and tasks at a limit, as the scripts have counted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from celery_throttle.limits.cost import MILLION
from celery_throttle.store.counters import (
    DROP_REASONS,
    FIRST_WAIT_SECONDS,
    REFUSAL_REASONS,
    WAIT_BUCKETS,
)

#: The longest wait of each bucket in seconds; the last bucket has all others.
WAIT_BOUNDS: tuple[float, ...] = (
    *(FIRST_WAIT_SECONDS * 2.0**n for n in range(WAIT_BUCKETS - 1)),
    inf,
)


@dataclass(frozen=True, slots=True)
class Totals:
    """What was counted at a limit: since ever, or in a part of time.

    A task that needs several limits counts at each of them. Totals begin at 0 again after eight
    days in which nothing was counted or recorded.

    Attributes:
        granted: units taken, for calls and for tasks.
        refunded: units of them that settlements have given back.
        refused: calls refused, by reason: ``"limit"``, ``"slots"``, ``"paused"``, ``"keys"`` (as
            many keys as may are in use), ``"cost"`` (it can never pass). A call that waits counts
            if it gives up.
        parked: tasks that joined a line.
        claimed: tasks that were claimed from a line with their units.
        waits: the same by wait: bucket n has those that waited up to ``WAIT_BOUNDS[n]`` seconds,
            and longer than those of the bucket before.
        handed_out: tasks taken from a line without units, as they had expired or could never pass.
        requeued: claimed tasks that went back to their lines, also from quarantine. Their units
            are spent.
        lost_claims: claims whose worker was lost: its lease had expired.
        lost_slots: slots whose lease had expired when another slot was taken. If the last lease of
            all expires, those that are left are not counted.
        dropped: tasks that did not join a line, by reason: ``"late"`` (``throttle_max_wait``),
            ``"full"`` (``max-waiting``), ``"keys"`` and ``"cost"`` as above.
        revoked, discarded: tasks that were so while they waited.
        removed: tasks taken out of lines by drain, move or drop.
        broker_waits: tasks that began to wait at the broker (``throttle_waiting = "broker"``).
        api_refusals: answers of an API that refused a request, such as 429.
        shadow_refused: requests that the shadow clauses of the limit would have refused.
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
    revoked: int = 0
    discarded: int = 0
    removed: int = 0
    broker_waits: int = 0
    api_refusals: int = 0
    shadow_refused: int = 0

    @property
    def claimed(self) -> int:
        """How many tasks were claimed from a line with their units."""
        return sum(self.waits)

    @property
    def waited(self) -> float:
        """About how long they waited in all, in seconds: each as the middle of its bucket."""
        bounds = (0.0, *WAIT_BOUNDS[:-1], 2 * WAIT_BOUNDS[-2])
        return sum(
            tasks * (bounds[n] + bounds[n + 1]) / 2 for n, tasks in enumerate(self.waits) if tasks
        )

    @property
    def refusals(self) -> int:
        """How many calls were refused."""
        return sum(calls for _, calls in self.refused)

    @property
    def drops(self) -> int:
        """How many tasks did not join a line."""
        return sum(tasks for _, tasks in self.dropped)

    def wait_quantile(self, share: float) -> float | None:
        """Return the wait in seconds that this share of the claimed tasks did not exceed.

        It is between two bounds of buckets, in proportion. None if no task was claimed.
        """
        rest = share * self.claimed
        if not self.claimed:
            return None
        for n, tasks in enumerate(self.waits):
            if rest <= tasks:
                low = WAIT_BOUNDS[n - 1] if n else 0.0
                high = WAIT_BOUNDS[n] if n < WAIT_BUCKETS - 1 else low
                return low + (high - low) * (rest / tasks if tasks else 0.0)
            rest -= tasks
        return WAIT_BOUNDS[-2]


def add_totals(several: Sequence[Totals]) -> Totals:
    """Return the sum of totals."""
    added = {
        field.name: [getattr(totals, field.name) for totals in several] for field in fields(Totals)
    }
    pairs = ("refused", "dropped")
    sums: dict[str, Any] = {
        name: sum(values) for name, values in added.items() if name not in (*pairs, "waits")
    }
    for name in pairs:
        reasons: Counter[str] = Counter()
        for values in added[name]:
            reasons.update(dict(values))
        order = REFUSAL_REASONS if name == "refused" else DROP_REASONS
        sums[name] = tuple((reason, reasons[reason]) for reason in order)
    waits = [totals.waits for totals in several] or [(0,) * WAIT_BUCKETS]
    return Totals(**sums, waits=tuple(map(sum, zip(*waits, strict=True))))


def read_totals(counters: Mapping[str, float]) -> Totals:
    """Return the totals of counters as the scripts name them."""

    def number(name: str) -> int:
        return round(counters.get(name, 0))

    waits = tuple(number(str(n)) for n in range(WAIT_BUCKETS))
    return Totals(
        # A task from a line stands for one unit, and 'granted' has the rest.
        granted=counters.get("granted", 0) / MILLION + sum(waits),
        refunded=counters.get("refunded", 0) / MILLION,
        refused=tuple((reason, number(f"refused_{reason}")) for reason in REFUSAL_REASONS),
        parked=number("parked"),
        waits=waits,
        handed_out=number("handed_out"),
        requeued=number("requeued"),
        lost_claims=number("lost_claims"),
        lost_slots=number("lost_slots"),
        dropped=tuple((reason, number(f"dropped_{reason}")) for reason in DROP_REASONS),
        revoked=number("revoked"),
        discarded=number("discarded"),
        removed=number("removed"),
        broker_waits=number("broker_waits"),
        api_refusals=number("api_refusals"),
        shadow_refused=number("shadow_refused"),
    )


def pair_counters(flat: Sequence[bytes | str]) -> dict[str, float]:
    """Return the counters of a list in which names and totals alternate."""
    texts = [one.decode() if isinstance(one, bytes) else one for one in flat]
    return {name: float(total) for name, total in zip(texts[::2], texts[1::2], strict=True)}
