"""What a limit gives from now on: at a rate, at once from what is stored, or window by window."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS, is_endless
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency, Rate

#: What is less than this share of a unit, or of what a limit can store, is rounding.
DUST = 1e-9

#: Windows that are looked at one by one; those after them count as a steady flow.
_WINDOWS = 100


@dataclass(frozen=True, slots=True)
class Supply:
    """What a limit gives from now on.

    Attributes:
        name: of the limit.
        rate: units a second, once all ``steps`` are over; 0.0 if it is paused until it is resumed.
        stored: units that can pass at once; below 0 what it is still owed.
        most: units that it can store.
        paused: seconds for which nothing passes.
        steps: seconds, and the units that come then: windows that begin.
    """

    name: str
    rate: float
    stored: float = 0.0
    most: float = 1.0
    paused: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()

    @property
    def gives_nothing(self) -> bool:
        """Whether nothing passes before somebody resumes it."""
        return self.rate == 0


@dataclass(slots=True, eq=False)
class Store:
    """A supply while time goes by; ``shared`` by all lines of a group, or one for each of them."""

    supply: Supply
    shared: bool
    stored: float = field(init=False)
    next_step: int = field(init=False, default=0)
    dust: float = field(init=False)

    def __post_init__(self) -> None:
        self.stored = self.supply.stored
        self.dust = DUST * max(1.0, self.supply.most)

    @property
    def rate(self) -> float:
        """Units a second at this time."""
        return self.supply.rate if self.next_step == len(self.supply.steps) else 0.0

    def next_change(self, now: float) -> float:
        """When it changes by itself."""
        supply = self.supply
        change = supply.paused if supply.paused > now else inf
        if self.next_step < len(supply.steps):
            change = min(change, supply.steps[self.next_step][0])
        return change

    def pass_by(self, now: float, seconds: float, used: float) -> bool:
        """So much time passes, at an outflow; tells whether more can pass at once than before."""
        net, then, more = self.net(used), (now + seconds) * (1 + DUST), False
        self._add(net * seconds)
        steps = self.supply.steps
        while self.next_step < len(steps) and steps[self.next_step][0] <= then:
            self._add(steps[self.next_step][1])
            self.next_step += 1
            more = True
        return more or now < self.supply.paused <= then

    def net(self, used: float) -> float:
        """What is stored of its rate in a second, at an outflow."""
        net = self.rate - used
        return 0.0 if abs(net) <= DUST * used else net

    def lasts(self, used: float) -> float:
        """Seconds until what is stored is used up, or what it is owed has come."""
        net = self.net(used)
        return -self.stored / net if self.stored * net < 0 else inf

    def at_once(self, now: float) -> float:
        """Units that can pass without any time."""
        return 0.0 if self.supply.paused > now else max(0.0, self.stored)

    def take(self, amount: float) -> None:
        """Units that passed at once."""
        self._add(-amount)

    def _add(self, amount: float) -> None:
        stored = min(self.stored + amount, max(self.supply.most, self.stored))
        self.stored = 0.0 if abs(stored) < self.dust else stored


class Stock(NamedTuple):
    """What ``capacity.lua`` says of a limit: millionths of a unit and of its rate, microseconds."""

    amount: int
    full: int
    wait: int
    share: int


def supply_of(name: str, limit: Limit, stock: Stock, paused: int, now: int) -> Supply | None:
    """What a limit gives after the time ``now``; None if it has slots: nobody knows for how long.

    ``paused`` is in microseconds.

    Windows give what they hold when they begin, and so does a log where most of it was taken at
    once. A sliding window, and a log that was filled evenly, give steadily.
    """
    if is_endless(paused):
        return Supply(name, 0.0)
    if isinstance(limit.rate, Concurrency):
        return None
    rate = limit.rate.count / limit.rate.period_us * MICROSECONDS * stock.share / MILLION
    stored = stock.amount / MILLION
    # A fraction of a unit counts, and what is owed. A leaky queue lets one go when it is empty.
    if stock.wait > 0 or limit.algorithm == "leaky-queue":
        stored = 1 - stock.wait / MICROSECONDS * rate
    steps = _steps(limit, limit.rate, stock, now)
    if steps and stock.wait > 0:
        stored = 0.0
    return Supply(name, rate, stored, limit.burst, paused / MICROSECONDS, steps)


def _steps(limit: Limit, rate: Rate, stock: Stock, now: int) -> tuple[tuple[float, float], ...]:
    period, burst = rate.period_us, float(limit.burst)
    if limit.algorithm == "fixed-window":
        return tuple((begin / MICROSECONDS, burst) for begin in _windows(limit, stock, period, now))
    if limit.algorithm == "sliding-log" and stock.full - stock.wait < period / 2:
        # What is in use is free again together, and what is taken now a period from now.
        free = stock.amount / MILLION
        old = [(begin / MICROSECONDS, burst - free) for begin in _every(stock.full, period)]
        new = [(begin / MICROSECONDS, free) for begin in _every(period, period)]
        return tuple(sorted(step for step in old + new if step[1] > 0))
    if limit.algorithm == "sliding-window" and stock.full == 0:
        # What is taken now is in use at least until the next part begins.
        part = period // limit.parts
        return (((part - now % part) / MICROSECONDS, 0.0),)
    return ()


def _windows(limit: Limit, stock: Stock, period: int, now: int) -> list[int]:
    """Microseconds until each of the next windows begins."""
    if isinstance(limit.window, Calendar):
        starts = limit.window.starts(limit.calendar_period or "", now, _WINDOWS)
        return [start - now for start in starts if start > now]
    if limit.window == FIRST_REQUEST:
        return _every(stock.full or period, period)
    return _every(period - now % period, period)


def _every(first: int, period: int) -> list[int]:
    return [first + number * period for number in range(_WINDOWS)]
