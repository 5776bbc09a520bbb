"""What rules choose from.

A table is drawn from at a fraction of the cost of each field on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from celery_throttle.limits.key import ItemLike, parse_item
from celery_throttle.limits.requirement import LimitsLike
from celery_throttle.operations.waiting import Mode
from tests.model.claimants import AHEAD
from tests.model.tasks import Kind
from tests.protocol import SECOND

START = 1_700_000_000 * SECOND

#: What the code defines.
LIMITS: Mapping[str, LimitsLike] = {
    "api": "10/s burst 2",
    "mail": "3/s max-keys 2 max-waiting 4",
    "slots": "2 at once",
    "github": ["8/s burst 2", "30/10s using sliding-log", "1 at once"],
    "queue": "8/s burst 3 using leaky-queue",
}
_RATES = (
    "10/s burst 2",
    "1/2s burst 2",
    "100/s burst 10",
    "3/s using leaky-bucket",
    "7/s burst 2 using token-bucket",
    "5/s burst 3 using leaky-queue",
    "2/3s using sliding-log",
)
_KEYED = tuple(f"{rate} max-keys 2 max-waiting 4" for rate in _RATES)
_SLOTS: tuple[LimitsLike, ...] = ("1 at once", "2 at once", "4 at once", ["2 at once", "5/s"])
_GITHUB: tuple[LimitsLike, ...] = (
    ["6/2s using sliding-log", "2/s burst 2", "2 at once"],
    ["1 at once", "4/s using token-bucket", "20/s"],
)

#: All that a task or a caller names; and more of what may be paused, defined or reset.
NAMED: tuple[ItemLike, ...] = (
    "api",
    ("mail", "a"),
    ("mail", "b"),
    ("mail", "c"),
    "slots",
    ("slots", "k"),
    "github",
    "queue",
    "mail",
)
REFS = [parse_item(reference) for reference in NAMED]


class Gate(NamedTuple):
    """How messages come to a gate; new ones so many at once."""

    mode: Mode = Mode.MAY_RUN
    lost: bool = False
    many: int = 1


GATES = (
    Gate(),
    Gate(many=2),
    Gate(many=4),
    Gate(Mode.PARK, many=4),
    Gate(Mode.NO_PROCESS, many=4),
    Gate(lost=True),
)


class Claim(NamedTuple):
    """How a worker claims; ``start``: and starts what it may start now."""

    room: int
    ahead: int = AHEAD
    lost: bool = False
    start: bool = True


CLAIMS = (
    Claim(1),
    Claim(3),
    Claim(10),
    Claim(2, start=False),
    Claim(5, start=False),
    Claim(4, ahead=0),
    Claim(0),
    Claim(2, lost=True),
)

_SETS: tuple[tuple[ItemLike, ...], ...] = (
    ("api",),
    (("mail", "a"),),
    ("api", ("mail", "a")),
    ("api", ("mail", "b")),
    (("mail", "c"),),
    ("slots",),
    ("slots", "api"),
    (("slots", "k"), "api"),
    ("github",),
    ("queue",),
    ("api", "queue"),
)
_plain = Kind(())
KINDS = [
    kind._replace(limits=limits)
    for limits, kind in product(
        _SETS,
        (
            _plain,
            _plain,
            _plain._replace(cost=2),
            _plain._replace(cost=0.5),
            _plain._replace(rank=0),
            _plain._replace(queue="q"),
            _plain._replace(expires=SECOND // 2),
            _plain._replace(max_wait=SECOND // 2),
            _plain._replace(times=5),
            _plain._replace(late=False),
        ),
    )
]


class Ask(NamedTuple):
    """What a caller outside tasks asks for."""

    mode: str
    limits: tuple[ItemLike, ...]
    cost: float = 1


ASKS = (
    *(Ask("take", limits) for limits in _SETS[:5]),
    Ask("take", ("queue",)),
    Ask("take", ("api",), 0.3),
    Ask("take", ("mail",)),
    Ask("upto", ("api",), 3),
    Ask("upto", ("api", ("mail", "b"))),
    Ask("reserve", ("api",), 2),
    Ask("reserve", ("api",)),
    Ask("reserve", (("mail", "a"),)),
    Ask("reserve", ("api", "queue")),
    Ask("slot", ("slots",)),
    Ask("slot", (("slots", "k"), "api")),
    Ask("slot", ("github",)),
)


#: To what limits are changed at run time; None takes that back.
CHANGES: Mapping[ItemLike, Sequence[LimitsLike | None]] = {
    "api": (*_RATES, None),
    "mail": (*_KEYED, None),
    ("mail", "a"): (*_KEYED, *[None] * 6),
    "queue": (*_RATES, None),
    "slots": (*_SLOTS, None),
    ("slots", "k"): (*_SLOTS, None),
    "github": (*_GITHUB, None),
}

#: Microseconds.
TIMES = (1_000, 20_000, 100_000, 300_000, SECOND, 3 * SECOND, 6 * SECOND, -1, -15_000, -10 * SECOND)
