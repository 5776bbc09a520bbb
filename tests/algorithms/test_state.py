"""What is kept of a limit: no more than matters, no longer than it matters, and no shorter.

Keys expire by real time, while the time in these tests is made up. So each key is deleted at the
moment of its own time at which it would expire.
"""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle.changes import Plan
from celery_throttle.costs import MILLION
from celery_throttle.limits import CONCURRENCY, Limit
from celery_throttle.rates import Rate
from celery_throttle.scripts import Argument, pack
from tests.algorithms.limits import EVERY, METERS
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, settling, steady, traces

#: What `clock.lua` adds where the time is made up, in milliseconds.
ADDED = 3_600_000
#: What no expiry is: tells a key that was written from one that was not.
NEVER = 10**14


class Expiring:
    """The keys of one limit, which expire by its own time."""

    def __init__(self, side: Side) -> None:
        entries = side.plans.keys.entries(side.ref)
        self._side = side
        self._names = (side.plans.keys.state(side.ref), entries, f"{entries}+1")
        self._till: dict[str, int] = {}
        #: Milliseconds, at least, for which what was written last is to be kept.
        self.lasts = 0

    def play(self, step: Step) -> Plan[Any]:
        """Carry out one step. What has expired by now is deleted before."""
        now = self._side.clock.now
        gone = [name for name, till in self._till.items() if now >= till]
        marks = [("PEXPIREAT", name, NEVER) for name in self._till]
        self._ask(*(("DEL", name) for name in gone), *marks)
        before = self._time()
        decision = yield from self._side.play(step)
        after = self._time()
        self._look(before, after)
        return decision

    def _look(self, before: int, after: int) -> None:
        times = self._ask(*(("PEXPIRETIME", name) for name in self._names))
        now, self.lasts = self._side.clock.now, 0
        for name, time in zip(self._names, times, strict=True):
            assert time != -1, f"{name} never expires"
            if time == -2:  # there is none
                self._till.pop(name, None)
            elif time != NEVER:
                self.lasts = max(self.lasts, time - after - ADDED)
                self._till[name] = now + (time - before - ADDED) * 1000

    def sizes(self) -> tuple[int, int]:
        """Bytes of the state, and how many entries there are besides."""
        state, *entries = self._names
        size, *counts = self._ask(("STRLEN", state), *(("ZCARD", name) for name in entries))
        return size, sum(counts)

    def _time(self) -> int:
        ((seconds, us),) = self._ask(("TIME",))
        return int(seconds) * 1000 + int(us) // 1000

    def _ask(self, *commands: tuple[Argument, ...]) -> list[Any]:
        return self._side.wire.ask([pack(*command) for command in commands])


def most_bytes(limit: Limit) -> int:
    """Of the time of the definition, then of its tag and size, and its numbers."""
    numbers = {"fixed-window": 3, "sliding-log": 4, CONCURRENCY: 0}
    if limit.algorithm in METERS:
        return 8 + 3 + 5 * 8
    if limit.algorithm == "sliding-window":
        return 8 + 3 + 8 * (2 + limit.parts + 1)
    return 8 + 3 + 8 * numbers[limit.algorithm]


@shown(150, EVERY, steady)
def test_no_more_is_kept_than_matters(side: Side, trace: list[Step]) -> Plan[None]:
    """A state of a size that is known, and at most the entries of one period or of each slot."""
    keys = Expiring(side)
    for step in trace:
        decision = yield from keys.play(step)
        assert not decision or keys.lasts <= decision.reset_after * 1000 + 2
        size, entries = keys.sizes()
        assert size <= most_bytes(side.limit)
        assert entries <= most_entries(side)


def most_entries(side: Side) -> int:
    limit = side.limit
    if limit.algorithm == CONCURRENCY:
        return limit.burst
    if limit.algorithm != "sliding-log" or not side.admitted:
        return 0
    assert isinstance(limit.rate, Rate)
    # Those of the period before the last, at which the older ones were forgotten.
    last = side.admitted[-1].now
    return sum(one.now > last - limit.rate.period_us for one in side.admitted)


@shown(150, EVERY, settling)
def test_nothing_expires_that_still_matters(side: Side, trace: list[Step]) -> Plan[None]:
    """The reference, which forgets nothing, does not notice."""
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)
    while side.held:
        yield from keys.play(Step("settle"))
    for step in (Step("advance", 500, span="full"), Step("peek")) * 2:
        yield from keys.play(step)


@shown(100, EVERY, traces(acquire=4, upto=1, advance=3, define=1), keys=(None,))
def test_nothing_expires_that_matters_to_the_next_limit(
    side: Side, trace: list[Step]
) -> Plan[None]:
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)


@pytest.mark.xfail(reason="a key that is not defined itself expires by the limit before")
def test_nothing_of_a_key_expires_that_matters_to_the_next_limit(sides: Sides) -> None:
    trace = [Step("acquire", 1000), Step("define"), Step("advance", more=2_000_000), Step("peek")]
    limits, others = [Limit.parse("100/s burst 100")], [Limit.parse("100/h burst 100")]
    sides.show(_expiring, limits, trace, key="key", others=others)


def _expiring(side: Side, trace: list[Step]) -> Plan[None]:
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)


def test_an_estimate_of_long_ago_gives_nothing_back(sides: Sides) -> None:
    """Not even when all has expired since, and somebody else has taken as much."""
    limits = [
        Limit.parse(f"10/10s using {rest}")
        for rest in ("sliding-log", "sliding-window parts 5", "fixed-window", "gcra burst 10")
    ]
    trace = [
        Step("reserve", 1000, worth=0),
        Step("advance", span="full", share=2000),
        Step("acquire", 1000),
        Step("settle"),
    ]
    sides.show(_ends_full, limits, trace)


def _ends_full(side: Side, trace: list[Step]) -> Plan[None]:
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)
    assert not (yield from side.peek(MILLION))
