"""Several limits of one name, which all have to allow; and limits that are defined at run time."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_throttle.errors import (
    CostError,
    LimitError,
    LimitSyntaxError,
    LimitValueError,
    Throttled,
    UnknownLimitError,
)
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import (
    MAX_LIMITS_PER_NAME,
    MAX_REFS_PER_CALL,
    has_slots,
    parse_definitions,
)
from celery_throttle.testing import ManualClock
from tests.ends import End, MakeEnd
from tests.protocol import START

HOUR = 3600
LIMITS = {
    "github": ["3/h using fixed-window", "2/s burst 2"],
    "single": ["1/s"],
    "host": ["5/h using fixed-window", "2 at once"],
    "slots": "2 at once",
    "rate": "10/s burst 5",
    "logs": ["2/m using sliding-log", "3/h using sliding-log"],
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START - START % (HOUR * 1_000_000))


@pytest.fixture
def limiter(redis_url: str, clock: ManualClock, end_of: MakeEnd) -> End:
    return end_of(Limiter(redis_url, LIMITS, clock=clock))


# What is read.


def test_a_name_has_one_limit_or_several() -> None:
    known = parse_definitions(
        {
            "github": ["5000/h", Limit.parse("10/s"), "10 at once"],
            "mail": "1/s",
            "api": Limit.parse("2/s"),
            "one": ("3/s",),
        }
    )
    texts = {name: [str(limit) for limit in limits] for name, limits in known.items()}
    assert texts == {
        "github": ["5000/h", "10/s", "10 at once"],
        "mail": ["1/s"],
        "api": ["2/s"],
        "one": ["3/s"],
    }
    assert [has_slots(limit) for limit in known["github"]] == [False, False, True]


@pytest.mark.parametrize(
    ("written", "error", "offending"),
    [
        ([], LimitValueError, "'github' has 0 limits"),
        ((), LimitValueError, "'github' has 0 limits"),
        (
            ["1/s"] * (MAX_LIMITS_PER_NAME + 1),
            LimitValueError,
            f"'github' has {MAX_LIMITS_PER_NAME + 1} limits",
        ),
        (["1/s", "1/fortnight"], LimitSyntaxError, "'fortnight'"),
        (["1/s", "0/s"], LimitValueError, "'0/s'"),
        (["1/s", 5], LimitSyntaxError, "5"),
        (["1/s", ["1/s"]], LimitSyntaxError, "['1/s']"),
        ({"1/s": 1}, LimitSyntaxError, "{'1/s': 1}"),
        (b"1/s", LimitSyntaxError, "b'1/s'"),
        (None, LimitSyntaxError, "None"),
        (5, LimitSyntaxError, "5"),
    ],
)
def test_limits_that_cannot_be_read(written: Any, error: type[LimitError], offending: str) -> None:
    with pytest.raises(error, match="allowed:") as caught:
        parse_definitions({"github": written})
    assert offending in str(caught.value)


def test_how_many_at_once_is_said_once() -> None:
    with pytest.raises(LimitValueError, match=r"has two numbers of slots; allowed: one") as caught:
        parse_definitions({"github": ["3 at once", "1/s", "2 at once"]})
    assert "['3 at once', '1/s', '2 at once'] for 'github'" in str(caught.value)


def test_as_many_limits_as_a_name_may_have(limiter: End) -> None:
    limiter["many"].define([f"{count}/h" for count in range(1, MAX_LIMITS_PER_NAME + 1)])
    assert limiter["many"].try_acquire().burst == 1
    assert limiter["many"].try_acquire().retry_after == HOUR


# What is decided.


def test_all_of_them_have_to_allow(limiter: End, clock: ManualClock) -> None:
    github = limiter["github"]
    taken = github.try_acquire()
    assert (taken.remaining, taken.burst, taken.granted) == (1, 2, 1)
    github.try_acquire()
    refused = github.try_acquire()
    assert (refused.limited_by, refused.retry_after, refused.burst) == ("github", 0.5, 2)
    clock.advance(0.5)
    assert github.try_acquire()
    clock.advance(10)
    refused = github.try_acquire()
    assert (refused.limited_by, refused.retry_after, refused.burst) == ("github", HOUR - 10.5, 3)
    assert github.peek(0).remaining == 0
    with pytest.raises(Throttled, match="'github'") as caught:
        github.acquire(max_wait=1)
    assert caught.value.limit == "github"
    clock.advance(HOUR - 10.5)
    assert github.try_acquire(2)


def test_a_key_has_all_of_them_too(limiter: End) -> None:
    assert limiter["github", "a"].try_acquire(2)
    refused = limiter["github", "a"].try_acquire()
    assert (refused.limited_by, refused.retry_after) == ("github", 0.5)
    assert limiter["github", "b"].try_acquire(2)
    assert limiter["github"].try_acquire(2)


def test_what_can_be_done_with_one_can_be_done_with_all(limiter: End, clock: ManualClock) -> None:
    github = limiter["github"]
    assert github.acquire_up_to(5).granted == 2
    clock.advance(1)
    assert github.acquire_up_to(5).granted == 1
    github.reset()
    assert github.try_acquire(2)
    assert github.pause(30) == 30
    assert github.try_acquire().retry_after == 30
    assert limiter["github", "a"].try_acquire().retry_after == 30
    github.reset()
    assert github.try_acquire(2)
    with pytest.raises(CostError, match=r"'github'.*2\b"):
        github.try_acquire(3)
    assert limiter.try_acquire(["single", "rate"], {"single": 1, "rate": 5})


def test_they_share_what_is_kept_of_a_name(limiter: End, client: redis.Redis) -> None:
    limiter["github"].try_acquire()
    limiter["logs"].try_acquire()
    keys = sorted(key.decode().partition(":")[2] for key in client.scan_iter())
    states = ["entries:logs+1", "entries:logs+2", "state:github", "state:logs"]
    totals = ["totals:github", "totals:logs"]
    assert keys == sorted(["limits", "names", *states, *totals])


def test_each_log_remembers_on_its_own(limiter: End, clock: ManualClock) -> None:
    logs = limiter["logs"]
    assert logs.try_acquire(2)
    assert logs.try_acquire().retry_after == 60
    clock.advance(60)
    assert logs.try_acquire()
    refused = logs.try_acquire()
    assert (refused.retry_after, refused.burst, refused.reset_after) == (HOUR - 60, 3, HOUR)
    clock.advance(HOUR - 60)
    assert logs.try_acquire(2)


def test_they_come_back_when_the_server_has_forgotten_them(
    limiter: End, client: redis.Redis
) -> None:
    limiter["github"].try_acquire()
    client.delete("{throttle}:limits")
    assert not limiter["github"].try_acquire(2)
    assert client.hkeys("{throttle}:limits") == [b"github"]
    with pytest.raises(UnknownLimitError, match=r"'nope'.*'github', 'host', 'logs', 'rate'"):
        limiter["nope"].try_acquire()


# Definitions.


def test_they_are_defined_together(limiter: End, clock: ManualClock) -> None:
    github = limiter["github"]
    github.try_acquire(2)
    limiter["github"].define(["9/h using fixed-window", "4/s burst 4"])
    assert (github.peek(0).burst, github.peek(0).remaining) == (4, 2)
    limiter["github", "gold"].define(["2/h using fixed-window", "1/s burst 9"])
    assert limiter["github", "gold"].try_acquire(2)
    assert limiter["github", "gold"].try_acquire().retry_after == HOUR
    assert limiter["github", "silver"].try_acquire(4)
    limiter["github", "gold"].undefine()
    clock.advance(2)
    assert limiter["github", "gold"].try_acquire(4)
    limiter["github"].undefine()
    assert (github.peek(0).burst, github.peek(0).remaining) == (3, 1)
    assert github.try_acquire()
    assert github.try_acquire().retry_after == HOUR - 2


@pytest.mark.parametrize("key", [None, "key"])
def test_there_may_be_more_of_them_or_fewer(limiter: End, key: str | None) -> None:
    """Each adopts the units of the limit with its index, or the most of any."""
    job = limiter["job"] if key is None else limiter["job", key]
    limiter["job"].define(["9/h using fixed-window", "9/h burst 9"])
    job.try_acquire(4)
    limiter["job"].define("5/h burst 5")
    assert (job.peek(0).burst, job.peek(0).remaining) == (5, 1)
    limiter["job"].define(["9/h burst 9", "7/h using fixed-window", "6/h using sliding-log"])
    assert (job.peek(0).burst, job.peek(0).remaining) == (6, 2)
    assert job.try_acquire(2)
    assert not job.try_acquire(0.000001)
    limiter["job"].define(["7/h using sliding-window", "9/h burst 9"])
    assert (job.peek(0).burst, job.peek(0).remaining) == (7, 1)


@pytest.mark.parametrize("key", [None, "gold"])
@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("slots", "10/s"),
        ("slots", ["10/s", "10/m using sliding-log"]),
        ("rate", "3 at once"),
        ("rate", ["10/s", "3 at once"]),
        ("host", ["9/h using fixed-window", "9/s"]),
        ("github", ["9/h using fixed-window", "9 at once"]),
    ],
)
def test_slots_are_neither_given_nor_taken_away(
    limiter: End, client: redis.Redis, name: str, written: Any, key: str | None
) -> None:
    """Workers know from the code whether there is a slot to release."""
    limiter[name].peek(0)
    before = client.hgetall("{throttle}:limits")
    with pytest.raises(LimitValueError, match=r"allowed: limits with(out)? slots$") as caught:
        limiter[LimitRef(name, key)].define(written)
    assert f"limit {name!r} cannot become {written!r}" in str(caught.value)
    assert client.hgetall("{throttle}:limits") == before


@pytest.mark.parametrize("key", [None, "gold"])
@pytest.mark.parametrize(
    ("name", "written"), [("slots", "10/s"), ("rate", "3 at once"), ("host", ["9/h", "9/s"])]
)
def test_not_even_before_the_server_knows_the_limits_of_the_code(
    limiter: End, client: redis.Redis, name: str, written: Any, key: str | None
) -> None:
    with pytest.raises(LimitValueError, match=r"allowed: limits with(out)? slots$"):
        limiter[LimitRef(name, key)].define(written)
    assert not client.hgetall("{throttle}:limits")


def test_what_is_refused_of_a_definition(limiter: End) -> None:
    for written in ([], ["1/s", "nonsense"], ["1 at once", "2 at once"], 5):
        with pytest.raises(LimitError, match="allowed:"):
            limiter["github"].define(written)
    assert limiter["github"].peek(0).burst == 2


def test_slots_may_become_more_or_fewer(limiter: End) -> None:
    limiter["slots"].define("3 at once")
    assert limiter["slots"].peek(0).burst == 3
    limiter["slots", "small"].define(["10/s burst 9", "1 at once"])
    assert limiter["slots", "small"].peek(0).burst == 1
    limiter["host"].define("4 at once")
    assert limiter["host"].peek(0).burst == 4
    limiter["new"].define("3 at once")
    with pytest.raises(LimitValueError, match="'new' cannot become '3/s'"):
        limiter["new"].define("3/s")
    limiter["new"].undefine()
    limiter["new"].define("3/s")
    assert limiter["new"].try_acquire(1)


def test_what_waits_for_the_windows_of_a_calendar_is_told_of_more(
    redis_url: str, clock: ManualClock, end_of: MakeEnd
) -> None:
    """A definition has some windows; when they run out, a script replies so."""
    text = "3/d using fixed-window at 07:00 in America/New_York"
    limiter = end_of(Limiter(redis_url, {"api": text}, clock=clock))
    limiter["api", "gold"].define("5/d using fixed-window in Asia/Kolkata")
    for days in (1, 40, 40, 400, 4_000):
        assert limiter["api"].try_acquire(3)
        refused = limiter["api"].try_acquire()
        _, start, stop = Calendar("America/New_York", 7).starts("d", clock.now, 2)
        assert refused.retry_after == (stop - clock.now) / 1_000_000
        assert start <= clock.now
        assert limiter["api", "gold"].try_acquire(5)
        assert not limiter["api", "gold"].try_acquire()
        clock.advance(refused.retry_after - 0.000001)
        assert not limiter["api"].try_acquire()
        clock.advance(0.000001)
        assert limiter["api"].try_acquire()
        clock.advance(days * 86_400)
    clock.advance(-9_000 * 86_400.0)  # and when the clock has stepped back
    assert limiter["api"].peek(3).burst == 3


# How many limits and keys one call may name.

MANY: dict[str, Any] = {
    "keys": "1000/h burst 100",
    "twenty": [
        *(f"{rate}/s burst 100" for rate in range(1000, 1017)),
        "1000/h using sliding-log",
        "1000/h using sliding-window parts 6",
        "5000/d using fixed-window in America/Los_Angeles",
    ],
    "slots": "2 at once max-keys 10000",
    **{f"name{number}": "1000/h burst 100" for number in range(MAX_REFS_PER_CALL)},
}


@pytest.mark.parametrize("what", ["names", "keys", "twenty"])
def test_as_many_as_there_may_be(any_server_url: str, what: str) -> None:
    limiter = Limiter(any_server_url, MANY, timeout=20)
    named = [f"name{n}" for n in range(MAX_REFS_PER_CALL)]
    refs: Any = (
        named if what == "names" else [limiter[what, str(n)] for n in range(MAX_REFS_PER_CALL)]
    )
    assert limiter.try_acquire(refs).allowed
    assert limiter.peek(refs).allowed
    assert limiter.acquire_up_to(refs, 2).granted == 2
    limiter.reserve(refs, 3, max_wait=5).settle(1)
    limiter.store.close()


def test_as_many_slots_as_there_may_be(any_server_url: str) -> None:
    limiter = Limiter(any_server_url, MANY, timeout=20)
    refs = [limiter["slots", str(n)] for n in range(MAX_REFS_PER_CALL)]
    with limiter.slot(refs):
        pass
    limiter.store.close()


@pytest.mark.parametrize(
    ("what", "more"),
    [("acquire", ()), ("peek", ()), ("acquire_up_to", (1,)), ("reserve", (1,)), ("slot", ())],
)
def test_too_many(redis_url: str, what: str, more: tuple[int, ...]) -> None:
    limiter = Limiter(redis_url, MANY)
    refs = [limiter["keys", str(n)] for n in range(4000)]
    told = "^4000 limits and keys are named at once; allowed: at most 1000$"
    with pytest.raises(LimitValueError, match=told):
        getattr(limiter, what)(refs, *more)
