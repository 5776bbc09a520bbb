"""Runs a trace against one limit, with the decisions of :mod:`celery_throttle.algorithms`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import ceil

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.cli.simulation import SimulationError
from celery_throttle.cli.simulation.traces import Arrival, Trace
from celery_throttle.errors import CostError
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate

_LIMIT = LimitRef("simulated", None)


class Mode(str, Enum):
    """What becomes of a request that a limit refuses."""

    DROP = "drop"
    """It is dropped, as when a caller outside tasks does not wait."""

    WAIT = "wait"
    """It waits in a line, first come, first served, as tasks do."""


@dataclass(frozen=True, slots=True)
class ArrivalOutcome:
    """The outcome of one arrival."""

    arrival: Arrival
    start: int | None  #: microseconds; None if it was refused for good
    retry_after: int | None = None  #: of a refusal, microseconds until it could pass, if known

    @property
    def wait(self) -> int | None:
        """Microseconds from the arrival to the start."""
        return None if self.start is None else self.start - self.arrival.time


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


def run_trace(trace: Trace, limit: Limit, mode: Mode = Mode.DROP, slot_us: int = 0) -> SimulatedRun:
    """Run a trace against a limit that is unused before.

    ``slot_us``: microseconds that each request holds its slot, if the limit has slots.

    Raises:
        SimulationError: a cost is above the burst, or there are slots and ``slot_us`` is 0.
    """
    if limit.algorithm != CONCURRENCY:
        slot_us = 0
    elif slot_us == 0:
        raise SimulationError(
            f"'{limit}' has slots, and needs the time that each is held; "
            "allowed: with --duration, such as --duration 0.5s"
        )
    player = _Player(limit, slot_us)
    outcomes = player.drop(trace) if mode is Mode.DROP else player.wait(trace)
    try:
        return SimulatedRun(limit, tuple(outcomes), slot_us)
    except CostError as error:
        raise SimulationError(str(error)) from None


class _Player:
    """Acquires from one limit."""

    def __init__(self, limit: Limit, slot_us: int) -> None:
        self._limit = limit
        self._slot_us = slot_us
        self._local = MemoryLimits({_LIMIT.name: limit})

    def _acquire(self, cost: Cost, now: int) -> Decision:
        if self._limit.algorithm != CONCURRENCY:
            return self._local.acquire({_LIMIT: cost}, now)
        # The lease of a slot expires when the request would release it.
        decision = self._local.peek({_LIMIT: cost}, now)
        if decision:
            taken = self._local.reserve({_LIMIT: cost}, now)
            assert taken is not None  # noqa: S101  # it was just allowed
            self._local.renew(taken, self._slot_us, now)
        return decision

    def drop(self, trace: Trace) -> Iterator[ArrivalOutcome]:
        """Let each arrival acquire once."""
        for arrival in trace.arrivals:
            decision = self._acquire(arrival.cost, arrival.time)
            if decision:
                yield ArrivalOutcome(arrival, arrival.time + _us(decision.delay))
            else:
                yield ArrivalOutcome(arrival, None, _us(decision.retry_after))

    def wait(self, trace: Trace) -> Iterator[ArrivalOutcome]:
        """Let the head of the line acquire until it is allowed, then the next one.

        A ``leaky-queue`` starts a request when all before it have leaked. Those that wait, and
        those that have not leaked, fit into its burst.
        """
        is_queue = self._limit.algorithm == "leaky-queue"
        starts: list[int] = []
        costs: list[Cost] = []
        for arrival in trace.arrivals:
            begun = bisect_right(starts, arrival.time)
            if is_queue and begun:
                in_use = self._unleaked(costs[begun - 1], arrival.time - starts[begun - 1])
                if len(starts) - begun + in_use >= self._limit.burst:
                    yield ArrivalOutcome(arrival, None)
                    continue
            costs.append(arrival.cost)
            at = max(arrival.time, starts[-1] if starts else 0)
            start = self._leaked(arrival.cost, at) if is_queue else self._passed(arrival.cost, at)
            starts.append(start)
            yield ArrivalOutcome(arrival, start)

    def _unleaked(self, cost: Cost, passed: int) -> int:
        """Return whole units that have not leaked, some microseconds after the last start."""
        p, q = self._limit.ticks
        return max(0, ceil(Fraction(cost) - Fraction(passed * q, p)))

    def _passed(self, cost: Cost, at: int) -> int:
        """Acquire as soon as it is allowed, from ``at`` on; return when that is."""
        while not (decision := self._acquire(cost, at)):
            at += _us(decision.retry_after)
        return at

    def _leaked(self, cost: Cost, at: int) -> int:
        """Acquire as soon as all before have leaked; return when that is."""
        while wait := _wait_of(self._local.peek({_LIMIT: cost}, at)):
            at += wait
        return self._passed(cost, at)


def _wait_of(decision: Decision) -> int:
    return max(_us(decision.retry_after), _us(decision.delay))


def _us(duration: float | None) -> int:
    assert duration is not None  # noqa: S101  # a cost that can never pass is an error before
    return round(duration * MICROSECONDS)


def window(limit: Limit, slot_us: int) -> int:
    """Return the window of a limit in microseconds: its period, or the time that a slot is held."""
    return limit.rate.period_us if isinstance(limit.rate, Rate) else slot_us
