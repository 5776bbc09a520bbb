"""Stored state: no more than is needed, no longer than it is needed, and no shorter.

Keys expire by real time, while the time in these tests is made up. So each key is deleted at the
moment of its own time at which it would expire.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.grammar import ADAPTIVE, CONCURRENCY
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.store.script import pack_command
from tests.algorithms.limits import EVERY, METERS
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, settling, steady, traces
from tests.algorithms.wire import Commands, Playing

#: What `clock.lua` adds where the time is made up, in milliseconds.
ADDED = 3_600_000
#: What no expiry is: tells a key that was written from one that was not.
NEVER = 10**14


class Expiring:
    """The keys of one limit, which expire by its own clock.

    Attributes:
        lasts: milliseconds, at least, for which what was written last is to be kept.
        size: bytes of the state.
        entries: how many there are besides.
    """

    def __init__(self, side: Side) -> None:
        entries = side.plans.keys.entries(side.ref)
        self._side = side
        self._names = (side.plans.keys.state(side.ref), entries, f"{entries}+1")
        self._till: dict[str, int] = {}
        self._began = 0
        self.lasts, self.size, self.entries = 0, 0, 0

    def play(self, step: Step) -> Playing[Decision | None]:
        """Execute one step, after deleting keys that have expired."""
        if step.do in ("advance", "back"):
            return (yield from self._side.play(step))
        gone = [name for name, till in self._till.items() if self._side.clock.now >= till]
        if gone or not self._began:
            *_, time = yield Commands(
                [*(pack_command("DEL", name) for name in gone), pack_command("TIME")]
            )
            self._began = self._began or milliseconds(time)
        decision = yield from self._side.play(step)
        yield from self._look()
        return decision

    def _look(self) -> Playing[None]:
        """Find the keys that were written, and mark them to find the next write."""
        names = self._names
        count = len(names)
        replies = yield Commands(
            [
                pack_command("TIME"),
                *(pack_command("PEXPIRETIME", name) for name in names),
                *(pack_command("PEXPIREAT", name, NEVER) for name in names),
                *(
                    pack_command("ZCARD" if place else "STRLEN", name)
                    for place, name in enumerate(names)
                ),
            ]
        )
        ended, now = milliseconds(replies[0]), self._side.clock.now
        self.size, *entries = replies[1 + 2 * count :]
        self.entries, self.lasts = sum(entries), 0
        for name, time in zip(names, replies[1 : 1 + count], strict=True):
            assert time != -1, f"{name} never expires"
            if time == -2:  # there is none
                self._till.pop(name, None)
            elif time != NEVER:
                self.lasts = max(self.lasts, time - ended - ADDED)
                self._till[name] = now + (time - self._began - ADDED) * 1000
        self._began = ended


def milliseconds(time: Sequence[bytes]) -> int:
    seconds, us = map(int, time)
    return seconds * 1000 + us // 1000


def most_bytes(limit: Limit) -> int:
    """The time of the definition, tag and size of the state, and its numbers."""
    numbers = {"fixed-window": 4, "sliding-log": 5, ADAPTIVE: 10, CONCURRENCY: 1}
    if limit.algorithm in METERS:
        return 8 + 3 + 6 * 8
    if limit.algorithm == "sliding-window":
        return 8 + 3 + 8 * (3 + limit.parts + 1)
    if limit.algorithm == CONCURRENCY and limit.is_adaptive:
        return 8 + 3 + 8 * 4
    return 8 + 3 + 8 * numbers[limit.algorithm]


@shown(100, EVERY, steady)
def test_no_more_is_kept_than_matters(side: Side, trace: list[Step]) -> Playing[None]:
    """A state of bounded size, and at most the entries of one period or of each slot."""
    keys = Expiring(side)
    for step in trace:
        decision = yield from keys.play(step)
        assert not decision or keys.lasts <= decision.reset_after * 1000 + 2
        assert keys.size <= most_bytes(side.limit)
        assert keys.entries <= most_entries(side)


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


@shown(100, EVERY, settling)
def test_nothing_expires_that_still_matters(side: Side, trace: list[Step]) -> Playing[None]:
    """The Python twin, which expires nothing, still agrees."""
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)
    while side.held:
        yield from keys.play(Step("settle"))
    for step in (Step("advance", 500, span="full"), Step("peek")) * 2:
        yield from keys.play(step)


@shown(100, EVERY, traces(acquire=4, upto=1, advance=3, define=1), keys=(None,), defining=True)
def test_nothing_expires_that_matters_to_the_next_limit(
    side: Side, trace: list[Step]
) -> Playing[None]:
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)


@pytest.mark.xfail(reason="a key that is not defined itself expires by the limit before")
def test_nothing_of_a_key_expires_that_matters_to_the_next_limit(sides: Sides) -> None:
    trace = [Step("acquire", 1000), Step("define"), Step("advance", more=2_000_000), Step("peek")]
    limits, others = [Limit.parse("100/s burst 100")], [Limit.parse("100/h burst 100")]
    sides.show(_expiring, limits, trace, key="key", others=others)


def _expiring(side: Side, trace: list[Step]) -> Playing[None]:
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)


def test_an_estimate_of_long_ago_gives_nothing_back(sides: Sides) -> None:
    """Not even if all has expired since, and another client has taken as much."""
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


def _ends_full(side: Side, trace: list[Step]) -> Playing[None]:
    keys = Expiring(side)
    for step in trace:
        yield from keys.play(step)
    assert not (yield from side.peek(MILLION))
