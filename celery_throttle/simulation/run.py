"""Plays a trace against one limit, with the reference's decisions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import ceil

from celery_throttle.algorithms.local import LocalLimits
from celery_throttle.errors import CostError
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.simulation import MICROSECONDS, SimulateError
from celery_throttle.simulation.traces import Arrival, Trace

_LIMIT = LimitRef("simulated", None)


class Mode(str, Enum):
    """What becomes of a request that a limit refuses."""

    DROP = "drop"
    """It is gone, as when a caller outside tasks asks once."""

    WAIT = "wait"
    """It waits in a line, first come, first served, as tasks do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a limit made of one arrival.

    Attributes:
        arrival: the request.
        start: when it may start, in microseconds; None if it was refused for good.
        retry_after: of a refusal: microseconds until it could pass; None if nobody knows.
    """

    arrival: Arrival
    start: int | None
    retry_after: int | None = None

    @property
    def wait(self) -> int | None:
        """Microseconds from the arrival to the start."""
        return None if self.start is None else self.start - self.arrival.time


@dataclass(frozen=True, slots=True)
class Run:
    """One limit, and what it made of a trace.

    Attributes:
        limit: the limit.
        outcomes: one for each arrival, in their order.
        hold: microseconds for which each holds its slot; 0 where there are none.
    """

    limit: Limit
    outcomes: tuple[Outcome, ...]
    hold: int = 0

    @property
    def admitted(self) -> list[tuple[int, Arrival]]:
        """Starts in order, and what started."""
        return [(one.start, one.arrival) for one in self.outcomes if one.start is not None]

    @property
    def refused(self) -> list[Arrival]:
        """What was refused for good."""
        return [one.arrival for one in self.outcomes if one.start is None]


def play(trace: Trace, limit: Limit, mode: Mode = Mode.DROP, hold: int = 0) -> Run:
    """Let the requests of a trace arrive at a limit.

    Args:
        trace: the requests.
        limit: the limit, of which nothing is in use before.
        mode: what becomes of those that it refuses.
        hold: microseconds for which each holds its slot, if the limit has any.

    Raises:
        SimulateError: a cost is above the burst, or there are slots and ``hold`` is 0.
    """
    if limit.algorithm != CONCURRENCY:
        hold = 0
    elif hold == 0:
        raise SimulateError(
            f"'{limit}' has slots, and nobody said how long each is held; "
            "allowed: with --duration, such as --duration 0.5s"
        )
    asked = _Asked(limit, hold)
    outcomes = asked.drop(trace) if mode is Mode.DROP else asked.wait(trace)
    try:
        return Run(limit, tuple(outcomes), hold)
    except CostError as error:
        raise SimulateError(str(error)) from None


class _Asked:
    """One limit while it is asked."""

    def __init__(self, limit: Limit, hold: int) -> None:
        self._limit = limit
        self._hold = hold
        self._local = LocalLimits({_LIMIT.name: limit})
        self._ask = self._decision()

    def _decision(self) -> Callable[[Cost, int], Decision]:
        if self._limit.algorithm == CONCURRENCY:
            return self._slot
        return lambda cost, now: self._local.acquire({_LIMIT: cost}, now)

    def _slot(self, cost: Cost, now: int) -> Decision:
        """Take a slot whose lease ends when it is given back."""
        decision = self._local.peek({_LIMIT: cost}, now)
        if decision:
            taken = self._local.reserve({_LIMIT: cost}, now)
            assert taken is not None  # noqa: S101  # it was just allowed
            self._local.renew(taken, self._hold, now)
        return decision

    def drop(self, trace: Trace) -> Iterator[Outcome]:
        """Each arrival asks once."""
        for arrival in trace.arrivals:
            decision = self._ask(arrival.cost, arrival.time)
            if decision:
                yield Outcome(arrival, arrival.time + _us(decision.delay))
            else:
                yield Outcome(arrival, None, _us(decision.retry_after))

    def wait(self, trace: Trace) -> Iterator[Outcome]:
        """The head of the line asks until it is allowed, and then the next one does.

        A ``leaky-queue`` starts one when all before it have leaked. What waits, and what has not
        leaked, has as much room as its burst.
        """
        is_queue = self._limit.algorithm == "leaky-queue"
        starts: list[int] = []
        costs: list[Cost] = []
        for arrival in trace.arrivals:
            begun = bisect_right(starts, arrival.time)
            if is_queue and begun:
                in_use = self._unleaked(costs[begun - 1], arrival.time - starts[begun - 1])
                if len(starts) - begun + in_use >= self._limit.burst:
                    yield Outcome(arrival, None)
                    continue
            costs.append(arrival.cost)
            at = max(arrival.time, starts[-1] if starts else 0)
            start = self._leaked(arrival.cost, at) if is_queue else self._passed(arrival.cost, at)
            starts.append(start)
            yield Outcome(arrival, start)

    def _unleaked(self, cost: Cost, passed: int) -> int:
        """Whole units that are left of what started last, after some microseconds."""
        p, q = self._limit.ticks
        return max(0, ceil(Fraction(cost) - Fraction(passed * q, p)))

    def _passed(self, cost: Cost, at: int) -> int:
        """Take as soon as it is allowed from ``at`` on; gives when that is."""
        while not (decision := self._ask(cost, at)):
            at += _us(decision.retry_after)
        return at

    def _leaked(self, cost: Cost, at: int) -> int:
        """Take as soon as all before have leaked."""
        while wait := _wait_of(self._local.peek({_LIMIT: cost}, at)):
            at += wait
        return self._passed(cost, at)


def _wait_of(decision: Decision) -> int:
    return max(_us(decision.retry_after), _us(decision.delay))


def _us(duration: float | None) -> int:
    assert duration is not None  # noqa: S101  # costs that can never pass are errors here
    return round(duration * MICROSECONDS)


def window(limit: Limit, hold: int) -> int:
    """Microseconds in which a limit counts: its period, or how long a slot is held."""
    return limit.rate.period_us if isinstance(limit.rate, Rate) else hold
