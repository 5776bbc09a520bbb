"""Costs of each algorithm: bytes of one key of a limit, and decisions per second.

*Bytes* are the memory of all keys of one limit and key (MEMORY USAGE of all entries) with 100 units
in use, acquired one by one; with GCRA without a burst only one can be. The limiter gets a manual
clock, so that the units of a sliding window or log spread over the period, as they usually do. The
definition of the limit, which all its keys share, is not included.

*Decisions* are allowed ones under a limit of a million a second that never binds, beside the plain
call, redis-py's ``evalsha`` of the least that can decide, in the same rounds; server and callers
share one processor, see ``pinned.py``. Windows and the log are of one second, save the calendar's,
so that units of earlier parts expire. Each slot is released, which takes a second call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from uuid import uuid4

import redis

from benchmarks.pinned import PLAIN, WHERE, Side, Times, compare, pinned_server, plain
from benchmarks.results import Figure, Options, Result
from celery_throttle import Decision, Limiter
from celery_throttle.operations.acquire import Holder
from celery_throttle.testing import ManualClock

UNITS = 100
MANY = 1_000_000

#: Some midnight, in microseconds.
MIDNIGHT = 20_000 * 86_400_000_000

NAME, KEY = "api", "tenant-42"


@dataclass(frozen=True, slots=True)
class Case:
    """One algorithm: the template of a limit, and how its units are acquired.

    Attributes:
        spread: whether the units in use are spread over the period.
        slots: whether the limit has slots.
    """

    name: str
    limit: str
    spread: bool = False
    slots: bool = False

    @property
    def small(self) -> str:
        """The limit with :data:`UNITS` a day."""
        return self.limit.format(rate=f"{UNITS}/d", units=UNITS)

    @property
    def large(self) -> str:
        """The limit with :data:`MANY` a second."""
        return self.limit.format(rate=f"{MANY}/s", units=UNITS if self.slots else MANY)


CASES = (
    Case("gcra", "{rate}"),
    Case("gcra, burst", "{rate} burst {units}"),
    Case("token-bucket", "{rate} burst {units} using token-bucket"),
    Case("leaky-bucket", "{rate} burst {units} using leaky-bucket"),
    Case("leaky-queue", "{rate} burst {units} using leaky-queue"),
    Case("fixed-window", "{rate} using fixed-window"),
    Case("fixed-window, first-request", "{rate} using fixed-window from first-request"),
    Case("fixed-window, calendar", "{units}/d using fixed-window in Europe/Berlin"),
    Case("sliding-log", "{rate} using sliding-log", spread=True),
    Case("sliding-window", "{rate} using sliding-window", spread=True),
    Case("sliding-window, 10 parts", "{rate} using sliding-window parts 10", spread=True),
    Case(
        "sliding-window, 10 parts, dropped",
        "{rate} using sliding-window parts 10 oldest dropped",
        spread=True,
    ),
    Case("adaptive", "adaptive {units}..{rate}"),
    Case("slots", "{units} at once", slots=True),
)


@dataclass(frozen=True, slots=True)
class Size:
    """The memory of one limit and key; ``strings``: the lengths of all strings."""

    units: int
    keys: int
    bytes: int
    strings: Sequence[int]


def run(options: Options) -> Result:
    """Measure the keys of each algorithm, then time all of them."""
    with pinned_server() as url:
        options.say("algorithms: sizes")
        sizes = [_fill(url, case) for case in CASES]
        options.say(f"algorithms: timing, {WHERE}")
        sides = {case.name: _side(url, case) for case in CASES}
        times = compare({PLAIN: plain(url, MANY, MANY), **sides}, options)
    # GCRA needs one string and nothing else; more or less than one is an error here.
    [length] = sizes[0].strings
    return Result(
        name="algorithms",
        theirs="",
        figures=[
            Figure("the state of gcra: keys", "", sizes[0].keys, at_most=1),
            Figure("  length", "bytes", length, at_most=64),
            *(
                figure
                for case, size in zip(CASES, sizes, strict=True)
                for figure in _figures(case, size, times)
            ),
        ],
    )


def _fill(url: str, case: Case) -> Size:
    """Acquire units one by one, and measure the keys."""
    clock = ManualClock(MIDNIGHT)
    limiter = Limiter(url, {NAME: case.small}, clock=clock)
    take = _slot(limiter) if case.slots else limiter[NAME, KEY].try_acquire
    units = 0
    for _ in range(UNITS):
        units += bool(take())
        # In all less than the period, so that the first unit is still in use at the end.
        clock.advance(0.98 * 86_400 / UNITS if case.spread else 0)
    with redis.Redis.from_url(url) as client:
        names = limiter.keys
        # A limit has these once, however many keys of it are in use.
        others = {names.limits, names.rules, names.names, names.changes, names.totals(NAME)}
        keys = [key for key in client.scan_iter() if key.decode() not in others]
        size = sum(client.memory_usage(key, samples=0) or 0 for key in keys)
        strings = [client.strlen(key) for key in keys if client.type(key) == b"string"]
        client.flushdb()
    return Size(units, len(keys), size, strings)


def _side(url: str, case: Case) -> Side:
    limiter = Limiter(url, {NAME: case.large}, prefix=f"{{{case.name}}}")
    return Side(_slot(limiter, release=True) if case.slots else limiter[NAME, KEY].try_acquire)


def _slot(limiter: Limiter, *, release: bool = False) -> Callable[[], Decision]:
    """Return a function that acquires a slot as ``slot()`` does, without renewing its lease."""
    requirement, plans = limiter.require([limiter[NAME, KEY]], 1), limiter.plans

    def take() -> Decision:
        holder = f"{os.getpid()} {uuid4().hex}"
        taken = limiter.run_plan(
            plans.try_acquire(requirement, None, mode="slot", holder=Holder(holder, lease=30.0))
        )
        if release:
            limiter.run_plan(plans.release(requirement.refs, holder))
        return taken.decision

    return take


def _figures(case: Case, size: Size, times: Times) -> Iterator[Figure]:
    yield Figure(f"{case.name}: units in use", "", size.units)
    yield Figure("  bytes of a key", "", size.bytes)
    ratios = times.beside(case.name)
    yield Figure("  decisions, of plain calls", "", median(ratios), rounds=ratios)
