"""Figures of a run: how many requests were admitted, how densely, after what wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.cli.demo.record import percentile
from celery_throttle.cli.simulation.run import SimulatedRun, window
from celery_throttle.limits.cost import MILLION, to_millionths, to_units
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.grammar import CONCURRENCY


class FullestWindow(NamedTuple):
    """The half-open window in which most units were admitted."""

    amount: int  #: millionths of a unit; for slots, a million for each
    first: int  #: the range of its admissions among all
    stop: int
    start: int  #: microseconds


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one limit; None for what does not apply."""

    limit: str
    admitted: int
    refused: int
    #: The most units that started in any window of `window_s`; for slots, held at once.
    fullest_window: int | float
    window_s: float | None  #: the period of the limit in seconds; None for slots
    wait_p50_s: float | None  #: seconds from arrival to start, of admitted arrivals
    wait_p95_s: float | None
    wait_p99_s: float | None
    wait_max_s: float | None
    memory_bytes: int | None = None  #: of one key on the server, at its largest


def figures(run: SimulatedRun, memory: int | None = None) -> Figures:
    """Return the figures of a run; ``memory``: bytes of one key."""
    waits = [one.wait / MICROSECONDS for one in run.outcomes if one.wait is not None]
    slots = run.limit.algorithm == CONCURRENCY
    return Figures(
        limit=str(run.limit),
        admitted=len(waits),
        refused=len(run.refused),
        fullest_window=to_units(fullest(run).amount),
        window_s=None if slots else window(run.limit, run.slot_us) / MICROSECONDS,
        wait_p50_s=percentile(waits, 0.5),
        wait_p95_s=percentile(waits, 0.95),
        wait_p99_s=percentile(waits, 0.99),
        wait_max_s=percentile(waits, 1),
        memory_bytes=memory,
    )


def fullest(run: SimulatedRun, *, by_count: bool = False) -> FullestWindow:
    """Return the fullest window of a run: by units, or by the number of admissions."""
    admitted, length = run.admitted, window(run.limit, run.slot_us)
    equal = by_count or run.limit.algorithm == CONCURRENCY
    amounts = [MILLION if equal else to_millionths(arrival.cost) for _, arrival in admitted]
    best = FullestWindow(0, 0, 0, 0)
    stop = amount = 0
    # The fullest window begins with an admission.
    for first, (start, _) in enumerate(admitted):
        while stop < len(admitted) and admitted[stop][0] < start + length:
            amount += amounts[stop]
            stop += 1
        if amount > best.amount:
            best = FullestWindow(amount, first, stop, start)
        amount -= amounts[first]
    return best
