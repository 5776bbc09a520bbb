"""Traces: steps with one limit. The size of a step depends on the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice, product
from typing import Any, NamedTuple

from hypothesis import strategies as st

from celery_throttle.algorithms.slots import LEASE_US
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import CONCURRENCY, FIRST_REQUEST
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit
from celery_throttle.limits.rate import Rate
from tests.algorithms.limits import SECOND


class Step(NamedTuple):
    """One step of a trace.

    Attributes:
        do: "acquire", "peek", take "upto" or "reserve" a share of the burst; "settle" what was
            reserved; "advance" the clock, or step "back", by a share of ``span``; or "define", or
            "pause".
        share: in thousandths.
        more: on top of the share: millionths of a unit (0: in whole units), or microseconds.
        span: "interval", "full" (empty to full), "wait" (what the last refusal told), "last" and
            "next" (since and until a window or a part of one begins), "none".
        worth: what was reserved turns out to be worth this share of it, in thousandths.
        which: of what was reserved, or of the limits to define. Of a pause: even for the name, odd
            for the key; from 2 on until it is resumed. With a ``worth`` of 0 it is resumed.
    """

    do: str
    share: int = 0
    more: int = 0
    span: str = "none"
    worth: int = 1000
    which: int = 0

    def cost(self, limit: Limit, least: int = 0) -> int:
        """Millionths of a unit."""
        cost = self.share * limit.burst * 1000
        if not self.more:
            return max(least * MILLION, cost - cost % MILLION)
        most = limit.burst * MILLION
        return min(cost + self.more, most) if self.do != "upto" else cost + self.more

    def time(self, limit: Limit, now: int, wait: int) -> int:
        """Microseconds."""
        spans: dict[str, Callable[[], int]] = {
            "interval": lambda: interval(limit),
            "full": lambda: full(limit),
            "wait": lambda: wait,
            "last": lambda: now - edges(limit, now)[0],
            "next": lambda: edges(limit, now)[1] - now,
            "none": lambda: 0,
        }
        return max(0, self.share * spans[self.span]() // 1000 + self.more)


def interval(limit: Limit) -> int:
    """Return the time of one unit; for slots a part of a lease."""
    if isinstance(limit.rate, Rate):
        return -(-limit.rate.period_us // limit.rate.count)
    return LEASE_US // 3


def full(limit: Limit) -> int:
    """Return the least time until nothing is in use."""
    if isinstance(limit.rate, Rate):
        return limit.burst * limit.rate.period_us // limit.rate.count
    assert limit.algorithm == CONCURRENCY
    return LEASE_US


def edges(limit: Limit, now: int) -> tuple[int, int]:
    """Return start and end of the window, or part, that contains a time, if known."""
    if not isinstance(limit.rate, Rate) or limit.window == FIRST_REQUEST:
        return now, now
    if isinstance(limit.window, Calendar) and limit.calendar_period:
        _, start, stop = limit.window.starts(limit.calendar_period, now, 2)
        return start, stop
    part = limit.rate.period_us // limit.parts
    return now - now % part, now - now % part + part


def _steps(do: str, *options: Mapping[str, Sequence[object]]) -> Iterator[Step]:
    """Return all combinations of the values of some fields."""
    for fields in options:
        for values in product(*fields.values()):
            chosen: dict[str, Any] = dict(zip(fields, values, strict=True))
            yield Step(do, **chosen)


_SHARES = (0, 1000, 500, 333, 1, 100, 250, 750, 999)
_FRACTIONS = (0, 1, 333_333)
_SETTLED = {"share": _SHARES, "more": _FRACTIONS, "worth": (0, 333, 999, 1000, 1001, 3000)}
_TABLE = {
    "acquire": [*_steps("acquire", {"share": _SHARES, "more": _FRACTIONS})],
    "peek": [*_steps("peek", {"share": _SHARES, "more": _FRACTIONS})],
    "upto": [
        *_steps("upto", {"share": _SHARES, "more": _FRACTIONS}, {"share": (2000,), "more": (0,)})
    ],
    "reserve": [*_steps("reserve", _SETTLED)],
    "settle": [*_steps("settle", {"which": range(4)})],
    "renew": [*_steps("renew", {"which": range(4)})],
    "learn": [
        *_steps(
            "learn",
            {
                "share": (1000, 0, 500, 100),
                "which": (0, 1, 2, 3),
                "worth": (0, 1, 1000, 1000),
                "span": ("none", "interval"),
                "more": (0, 1),
            },
        )
    ],
    "define": [*_steps("define", {"which": range(3)})],
    "pause": [
        *_steps(
            "pause",
            {
                "which": range(4),
                "span": ("interval", "full"),
                "share": (500, 1500),
                "worth": (0, 1000),
            },
        )
    ],
    "advance": [
        *_steps(
            "advance",
            {"span": ("none",), "more": (0, 1, 1000, MAX_BOOKING_US, SECOND)},
            {"span": ("wait",), "share": (1000, 1000, 500), "more": (0, 0, -1, 1)},
            {"span": ("next",), "share": (1000, 500), "more": (0, -1, 1000, 60_000)},
            {"span": ("interval",), "share": (1000, 333, 500, 2500), "more": (0, -1, 1)},
            {"span": ("full",), "share": (1000, 333, 500, 999, 1500), "more": (0, -1, 1, 3000)},
        )
    ],
    "back": [
        *_steps(
            "back",
            {
                "span": ("none",),
                "more": (1, 1000, MAX_BOOKING_US, MAX_BOOKING_US + 1, 3600 * SECOND),
            },
            {
                "span": ("interval", "full"),
                "share": (333, 1000, 2500),
                "more": (0, MAX_BOOKING_US + 1),
            },
            {
                "span": ("last",),
                "share": (1000,),
                "more": (0, 1, 1, 1000, MAX_BOOKING_US + 1, 60_000),
            },
        )
    ],
}


def traces(**weights: int) -> st.SearchStrategy[list[Step]]:
    """Return traces with kinds of steps in proportion to their weights."""
    # A table is drawn from at a fraction of the cost of every field on its own. Without a least
    # size most traces would be too short to fill a limit and see it refuse.
    steps = [islice(cycle(_TABLE[do]), 60 * weight) for do, weight in weights.items()]
    return st.lists(st.sampled_from([*chain(*steps)]), min_size=8, max_size=24)


steady = traces(acquire=4, advance=4, upto=1, peek=1)
unsteady = traces(acquire=4, advance=4, upto=1, back=2)
settling = traces(reserve=3, settle=3, advance=3, acquire=2)
everything = traces(
    acquire=4,
    advance=4,
    settle=2,
    **dict.fromkeys(("upto", "peek", "reserve", "renew", "back", "define", "learn", "pause"), 1),
)
learning = traces(acquire=4, advance=5, learn=4, upto=1, back=1)
