"""The capacity of a limit from now on: stored units, then a rate, or window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS, is_endless
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency, Rate

#: Differences below this share of a unit, or of the burst, are rounding errors.
EPSILON = 1e-9

#: The time in which stored units pass.
MOMENT_SECONDS = 1e-9

#: Windows that count one by one; after them the capacity is a steady rate.
_MAX_WINDOWS = 100


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a limit admits from now on."""

    name: str
    rate: float  #: units per second, after all windows; 0.0 if it is paused until it is resumed
    stored: float = 0.0  #: units that can pass at once; negative if units are still owed
    burst: float = 1.0  #: units that it can store
    paused: float = 0.0  #: seconds in which nothing passes
    windows: tuple[tuple[float, float], ...] = ()  #: seconds until each begins, and its units

    def seconds_for(self, units: float) -> float:
        """Return seconds until this number of units has passed; infinity for never."""
        if self.rate == 0:
            return inf
        if not self.windows:
            filled = min(self.stored + self.rate * self.paused, max(self.stored, self.burst))
            return self.paused + max(0.0, units - filled) / self.rate
        left = units - self.stored
        for start, added in ((0.0, 0.0), *self.windows):
            left -= added
            if left <= 0:
                return max(start, self.paused)
        return self.windows[-1][0] + left / self.rate


@dataclass(slots=True, eq=False)
class Reservoir:
    """A capacity in the course of time."""

    capacity: Capacity  #: at the begin
    stored: float = field(init=False)
    next_window: int = field(init=False, default=0)
    _epsilon: float = field(init=False)

    def __post_init__(self) -> None:
        self.stored = self.capacity.stored
        self._epsilon = EPSILON * max(1.0, self.capacity.burst)

    @property
    def rate(self) -> float:
        """The inflow at this time, in units per second."""
        return self.capacity.rate if self.next_window == len(self.capacity.windows) else 0.0

    def max_outflow(self, now: float) -> float:
        """Return units per second that can pass. Stored units pass in a moment."""
        if self.capacity.paused > now or self.stored < 0:
            return 0.0
        return self.rate + self.stored / MOMENT_SECONDS

    def next_change(self, now: float) -> float:
        """Return when a pause ends or a window begins; infinity for never."""
        capacity = self.capacity
        change = capacity.paused if capacity.paused > now else inf
        if self.next_window < len(capacity.windows):
            change = min(change, capacity.windows[self.next_window][0])
        return change

    def seconds_to_zero(self, outflow: float) -> float:
        """Return seconds until nothing is stored or owed; infinity for never."""
        net = self._net_inflow(outflow)
        return -self.stored / net if self.stored * net < 0 else inf

    def advance(self, now: float, seconds: float, outflow: float) -> None:
        """Let time pass."""
        end = (now + seconds) * (1 + EPSILON)
        self._add(self._net_inflow(outflow) * seconds)
        windows = self.capacity.windows
        while self.next_window < len(windows) and windows[self.next_window][0] <= end:
            self._add(windows[self.next_window][1])
            self.next_window += 1

    def _net_inflow(self, outflow: float) -> float:
        """Return units per second that are stored, with this outflow."""
        net = self.rate - outflow
        return 0.0 if abs(net) <= EPSILON * outflow else net

    def _add(self, amount: float) -> None:
        stored = min(self.stored + amount, max(self.capacity.burst, self.stored))
        self.stored = 0.0 if abs(stored) < self._epsilon else stored


class LimitState(NamedTuple):
    """The state of a limit as ``capacity.lua`` replies it."""

    amount: int  #: units that can pass at once, in millionths
    full: int  #: microseconds until nothing is in use
    wait: int  #: microseconds until one unit can pass
    share: int  #: the current rate, in millionths of the defined rate


class LimitsState(NamedTuple):
    """The limits in force of a name or key, and their states."""

    limits: Sequence[Limit]
    paused: int  #: microseconds
    states: Sequence[LimitState]  #: of each limit

    def available(self) -> int:
        """Return the units that can pass at once, in millionths; 0 while it is paused."""
        if self.paused:
            return 0
        # A leaky queue admits one unit when it is empty; its amount is what may queue there.
        amounts = (
            MILLION * (state.wait == 0) if limit.algorithm == "leaky-queue" else state.amount
            for limit, state in zip(self.limits, self.states, strict=True)
        )
        return max(0, min(amounts))

    def capacities(self, name: str, now: int) -> list[Capacity | None]:
        """Return the capacity of each limit; see :func:`read_capacity`."""
        return [
            read_capacity(name, limit, state, self.paused, now)
            for limit, state in zip(self.limits, self.states, strict=True)
        ]


def read_capacity(
    name: str, limit: Limit, state: LimitState, paused: int, now: int
) -> Capacity | None:
    """Return the capacity of a limit after the time ``now``; None if it has slots.

    ``paused`` is in microseconds. Nobody knows when slots are released.

    A window admits its units when it begins, and so does a log of which most was used at once. A
    sliding window, and a log that was filled evenly, admit steadily.
    """
    if is_endless(paused):
        return Capacity(name, 0.0)
    if isinstance(limit.rate, Concurrency):
        return None
    rate = limit.rate.count / limit.rate.period_us * MICROSECONDS * state.share / MILLION
    stored = state.amount / MILLION
    # Fractions of a unit and owed units count. A leaky queue admits one unit when it is empty.
    if state.wait > 0 or limit.algorithm == "leaky-queue":
        stored = 1 - state.wait / MICROSECONDS * rate
    windows = _windows(limit, limit.rate, state, now)
    if windows and state.wait > 0:
        stored = 0.0
    return Capacity(name, rate, stored, limit.burst, paused / MICROSECONDS, windows)


def _windows(
    limit: Limit, rate: Rate, state: LimitState, now: int
) -> tuple[tuple[float, float], ...]:
    period, burst = rate.period_us, float(limit.burst)
    if limit.algorithm == "fixed-window":
        starts = _window_starts(limit, state, period, now)
        return tuple((start / MICROSECONDS, burst) for start in starts)
    if limit.algorithm == "sliding-log" and state.full - state.wait < period / 2:
        # Units in use return together; free ones, if used now, a period from now.
        free = state.amount / MILLION
        used = [(start / MICROSECONDS, burst - free) for start in _periods(state.full, period)]
        unused = [(start / MICROSECONDS, free) for start in _periods(period, period)]
        return tuple(sorted(window for window in used + unused if window[1] > 0))
    if limit.algorithm == "sliding-window" and state.full == 0:
        # Units used now are in use at least until the next part begins.
        part = period // limit.parts
        return (((part - now % part) / MICROSECONDS, 0.0),)
    return ()


def _window_starts(limit: Limit, state: LimitState, period: int, now: int) -> list[int]:
    """Return microseconds until each of the next windows begins."""
    if isinstance(limit.window, Calendar):
        starts = limit.window.starts(limit.calendar_period or "", now, _MAX_WINDOWS)
        return [start - now for start in starts if start > now]
    if limit.window == FIRST_REQUEST:
        return _periods(state.full or period, period)
    return _periods(period - now % period, period)


def _periods(first: int, period: int) -> list[int]:
    return [first + number * period for number in range(_MAX_WINDOWS)]
