"""Figures of a run: how many passed, how close together, and after what wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from celery_throttle.demo.record import percentile
from celery_throttle.limits.cost import MILLION, to_millionths, to_units
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.simulation import MICROSECONDS
from celery_throttle.simulation.run import Run, window


class Fullest(NamedTuple):
    """The window in which most started, its end not included.

    ``amount``: millionths of a unit; of slots, a million for each. ``first``, ``stop``: places of
    its admissions among all. ``start``: microseconds.
    """

    amount: int
    first: int
    stop: int
    start: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a limit made of a trace; None where there is nothing to tell.

    Attributes:
        limit: the limit as text.
        admitted, refused: how many arrivals were.
        fullest_window: the most units that started in any window of ``window_s``; of slots, the
            most that were held at once.
        window_s: seconds: the period of the limit; None of slots.
        wait_p50_s, wait_p95_s, wait_p99_s, wait_max_s: seconds from arrival to start, of those
            that were admitted.
        memory_bytes: of one key on the server, when most is remembered of it.
    """

    limit: str
    admitted: int
    refused: int
    fullest_window: int | float
    window_s: float | None
    wait_p50_s: float | None
    wait_p95_s: float | None
    wait_p99_s: float | None
    wait_max_s: float | None
    memory_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def figures(run: Run, memory: int | None = None) -> Figures:
    """The figures of a run; ``memory``: bytes of one key."""
    waits = [one.wait / MICROSECONDS for one in run.outcomes if one.wait is not None]
    slots = run.limit.algorithm == CONCURRENCY
    return Figures(
        limit=str(run.limit),
        admitted=len(waits),
        refused=len(run.refused),
        fullest_window=to_units(fullest(run).amount),
        window_s=None if slots else window(run.limit, run.hold) / MICROSECONDS,
        wait_p50_s=percentile(waits, 0.5),
        wait_p95_s=percentile(waits, 0.95),
        wait_p99_s=percentile(waits, 0.99),
        wait_max_s=percentile(waits, 1),
        memory_bytes=memory,
    )


def fullest(run: Run, *, by_count: bool = False) -> Fullest:
    """The fullest window of a run: by units, or by the number of admissions."""
    admitted = run.admitted
    times = [time for time, _ in admitted]
    alike = by_count or run.limit.algorithm == CONCURRENCY
    amounts = [MILLION if alike else to_millionths(arrival.cost) for _, arrival in admitted]
    return _fullest(times, amounts, window(run.limit, run.hold))


def _fullest(times: Sequence[int], amounts: Sequence[int], length: int) -> Fullest:
    """Every window that could be the fullest begins with an admission."""
    best = Fullest(0, 0, 0, 0)
    stop = amount = 0
    for first, start in enumerate(times):
        while stop < len(times) and times[stop] < start + length:
            amount += amounts[stop]
            stop += 1
        if amount > best.amount:
            best = Fullest(amount, first, stop, start)
        amount -= amounts[first]
    return best
