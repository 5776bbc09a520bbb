"""Runs a trace against one limit, with the decisions of :mod:`celery_throttle.algorithms`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.algorithms.local import LocalLimits
from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.cli.simulation.traces import Arrival, Trace
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate

_REF = LimitRef("simulated", None)


class ArrivalOutcome(NamedTuple):
    """The outcome of one arrival."""

    arrival: Arrival
    start: int | None  #: microseconds; None if it was refused
    retry_after: int = 0  #: of a refusal, microseconds until it could pass

    @property
    def wait(self) -> int:
        """Microseconds from the arrival to the start; 0 if it was refused."""
        return 0 if self.start is None else self.start - self.arrival.time


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The outcomes of a trace at one limit."""

    limit: Limit
    outcomes: tuple[ArrivalOutcome, ...]  #: one for each arrival, in their order
    slot_us: int = 0  #: microseconds that each arrival holds its slot; 0 for other limits

    @property
    def admitted(self) -> list[tuple[int, Arrival]]:
        """Pairs of start and arrival, in order."""
        return [(one.start, one.arrival) for one in self.outcomes if one.start is not None]

    @property
    def refused(self) -> list[Arrival]:
        """Arrivals that were refused for good."""
        return [one.arrival for one in self.outcomes if one.start is None]

    @property
    def window(self) -> int:
        """Microseconds: the period of the limit, or the time that a slot is held."""
        rate = self.limit.rate
        return rate.period_us if isinstance(rate, Rate) else self.slot_us


def run_trace(
    trace: Trace, limit: Limit, *, in_line: bool = False, slot_us: int = 0
) -> SimulatedRun:
    """Run a trace against a limit that is unused before.

    ``in_line``: a refused request waits in a line, first come, first served, as tasks do; otherwise
    it is dropped. A ``leaky-queue`` is a line of its own, and refuses what its burst has no room
    for. ``slot_us``: microseconds that each request holds its slot, if the limit has slots.

    Raises:
        CommandError: the limit has slots, and ``slot_us`` is 0.
        CostError: a cost is above the burst.
    """
    if limit.algorithm != CONCURRENCY:
        slot_us = 0
    elif slot_us == 0:
        raise CommandError(
            f"'{limit}' has slots, and needs the time that each is held; "
            "allowed: with --duration, such as --duration 0.5s"
        )
    in_line = in_line and limit.algorithm != "leaky-queue"
    return SimulatedRun(limit, tuple(_outcomes(trace, limit, slot_us, in_line=in_line)), slot_us)


def _outcomes(
    trace: Trace, limit: Limit, slot_us: int, *, in_line: bool
) -> Iterator[ArrivalOutcome]:
    local, head = LocalLimits({_REF.name: limit}), 0

    def acquire(arrival: Arrival, now: int) -> Decision:
        costs = {_REF: arrival.cost}
        decision = local.acquire(costs, now)
        if decision and slot_us:  # the lease expires when the request would release its slot
            local.renew(local.last_takes(costs), slot_us, now)
        return decision

    for arrival in trace.arrivals:
        at = max(arrival.time, head)
        while not (decision := acquire(arrival, at)) and in_line:
            at += to_us(decision.retry_after or 0.0)
        if decision:
            head = at if in_line else 0
            yield ArrivalOutcome(arrival, at + to_us(decision.delay))
        else:
            yield ArrivalOutcome(arrival, None, to_us(decision.retry_after or 0.0))
