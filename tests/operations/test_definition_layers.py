"""Layers of definitions: the code, the rules file, and what is set at run time, for ever or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.errors import CostError, LimitError, UnknownLimitError
from celery_throttle.limiter.limiter import Limiter, apply_rules
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import put_looked_up, read_definitions
from celery_throttle.store import definitions
from celery_throttle.testing import ManualClock
from tests.protocol import SECOND, START, Make, Protocol
from tests.sizes import examples

END = 10.0

_limits = st.sampled_from(
    [
        "10/s burst 5",
        "1/s burst 3",
        "2/s burst 4 using token-bucket",
        "2/s using leaky-bucket",
        "2/s burst 3 using leaky-queue",
        "4/5s using fixed-window",
        "4/5s using fixed-window from first-request",
        "100/day using fixed-window in Europe/Berlin",
        "6/8s using sliding-log",
        "6/8s using sliding-window parts 4",
        "adaptive 1..10/s",
    ]
)
_step = st.one_of(
    st.tuples(st.just("acquire"), st.sampled_from([1, 1, 2, 0.5])),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.05, 0.4, 3.0, 7.0])),
    st.tuples(st.just("register"), st.just(0)),
)
_keys, _used = st.sampled_from([None, "a"]), st.integers(0, 3)
_change = st.tuples(st.just("define the name"), _limits)


Steps = Sequence[tuple[str, Any]]


class User:
    """A limiter with a definition that ends after END seconds: by itself, or by a call then."""

    def __init__(self, url: str, prefix: str, code: str, *, ends_by_itself: bool) -> None:
        self.clock = ManualClock(START)
        self.limiter = Limiter(url, {"api": code}, prefix=prefix, clock=self.clock)
        self.limiter.register()
        self.clock.advance(1)
        self._ends_by_itself, self._has_ended = ends_by_itself, True
        self.key: str | None = None

    def define(self, bounded: str, key: str | None) -> None:
        self.clock.advance(1)
        self.key, self._has_ended, self._end = key, False, self.clock.now + to_us(END)
        seconds = END if self._ends_by_itself else None
        self.limiter[LimitRef("api", key)].define(bounded, lasts=seconds)

    def step(self, kind: str, amount: Any) -> Decision | None:
        """Return the decision of an acquisition; None if its cost can never pass, or for others."""
        if kind == "advance":
            self._advance(to_us(amount))
        elif kind == "register":
            self.limiter.register()
        elif kind == "define the name":
            self.limiter["api"].define(amount)
        else:
            with suppress(CostError):
                return self.limiter["api", "a"].try_acquire(amount)
        return None

    def _advance(self, us: int) -> None:
        until = self.clock.now + us
        if not self._has_ended and until >= self._end:
            self._has_ended = True
            if not self._ends_by_itself:
                self.clock.now = self._end
                self.limiter[LimitRef("api", self.key)].undefine()
        self.clock.now = until

    def close(self) -> None:
        self.limiter.store.close()


Users = tuple[User, User, User]

_played = settings(
    max_examples=examples(600),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@contextmanager
def make_users(url: str, code: str, bounded: str, key: str | None, used: int) -> Iterator[Users]:
    """The definition of the second user is ended by a call, that of the two others by itself.

    Limits in memory forget what a server forgets by the expiry of its keys. With a clock of our own
    a server does not, so neither do they.
    """
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    users = (
        User(url, "{throttle}", code, ends_by_itself=True),
        User(url, "{other}", code, ends_by_itself=False),
        User("memory://", "{throttle}", code, ends_by_itself=True),
    )
    with patch.object(MemoryLimits, "forget_idle"):
        for user in users:
            for _ in range(used):
                user.step("acquire", 1)
            user.define(bounded, key)
        yield users
    for user in users:
        user.close()


@_played
@given(st.tuples(_limits, _limits, _keys, _used), st.lists(_step))
def test_a_definition_ends_as_if_it_were_removed_then(
    redis_url: str, start: tuple[str, str, str | None, int], steps: Steps
) -> None:
    with make_users(redis_url, *start) as users:
        for step in steps:
            by_itself, by_a_call, in_memory = (user.step(*step) for user in users)
            assert by_itself == in_memory, step
            if by_itself is not None and by_a_call is not None:
                # Nobody knows in advance when a call ends a definition.
                by_itself = by_itself._replace(retry_after=by_a_call.retry_after)
            assert by_itself == by_a_call, step


@_played
@given(st.tuples(_limits, _limits, st.just("a"), _used), st.lists(st.one_of(_step, _change)))
def test_a_key_is_never_given_more_if_its_name_changes_meanwhile(
    redis_url: str, start: tuple[str, str, str | None, int], steps: Steps
) -> None:
    """What drains between two changes that nobody has seen does not count."""
    with make_users(redis_url, *start) as users:
        granted = [0.0] * len(users)
        for step in steps:
            for i, user in enumerate(users):
                decision = user.step(*step)
                if decision:
                    granted[i] += step[1]
            by_itself, by_a_call, in_memory = granted
            assert by_itself <= by_a_call == in_memory, step


# The order of the layers.


@pytest.fixture
def limiter(redis_url: str, clock: ManualClock) -> Iterator[Limiter]:
    limiter = Limiter(redis_url, {"api": "10/s"}, clock=clock)
    limiter.register()
    yield limiter
    limiter.store.close()


@pytest.fixture
def stranger(redis_url: str, clock: ManualClock) -> Iterator[Limiter]:
    """A process whose code has no limits."""
    limiter = Limiter(redis_url, {}, clock=clock)
    yield limiter
    limiter.store.close()


def put_rules(limiter: Limiter, **limits: str) -> None:
    """Put a rules file in force; two underscores stand for the colon before a key."""
    rows = "\n".join(f'"{ref.replace("__", ":")}" = "{text}"' for ref, text in limits.items())
    assert apply_rules(limiter, read_rules(f"[limits]\n{rows}", "f"), "f")


def in_force(limiter: Limiter, *fields: str) -> list[str | None]:
    found = limiter.run_plan(read_definitions(limiter.plans, fields))
    return ["; ".join(map(str, definitions.unpack(one))) if one else None for one in found]


def origins(client: Any) -> dict[str, str]:
    found = client.hgetall("{throttle}:limits").items()
    return {field.decode(): chr(packed[0]) for field, packed in found}


def test_the_rules_come_before_the_code_and_what_is_set_before_both(
    limiter: Limiter, stranger: Limiter, client: Any
) -> None:
    put_rules(limiter, api="20/s")
    assert in_force(limiter, "api") == ["20/s"]
    limiter["api"].define("30/s")
    limiter["api", "gold"].define("40/s")
    assert in_force(limiter, "api", "api:gold", "api:other") == ["30/s", "40/s", None]
    stranger["api", "gold"].undefine()
    assert in_force(limiter, "api", "api:gold") == ["30/s", None]
    stranger["api"].undefine()
    assert (in_force(limiter, "api"), origins(client)) == (["20/s"], {"api": "r"})
    limiter.register()
    assert in_force(limiter, "api") == ["20/s"]
    limiter["api"].define("30/s")
    put_rules(limiter)
    assert in_force(limiter, "api") == ["30/s"]
    stranger["api"].undefine()
    assert (in_force(limiter, "api"), origins(client)) == (["10/s"], {"api": "c"})


def test_a_limit_that_the_code_has_no_more_is_removed_by_hand(
    limiter: Limiter, stranger: Limiter, client: Any
) -> None:
    limiter["api"].define("100/d burst 100")
    limiter["api"].undefine()  # the code of this process has it
    limiter["api"].undefine()
    assert in_force(limiter, "api") == ["10/s"]
    limiter["api"].try_acquire()
    stranger["api"].undefine()
    assert (in_force(limiter, "api"), origins(client)) == ([None], {})
    assert stranger.changes(most=1)[0].old == "10/s"
    with pytest.raises(UnknownLimitError, match="'api' is not defined"):
        stranger["api"].try_acquire()
    assert not limiter["api"].try_acquire().allowed  # defined again, and its unit is still in use


def test_a_key_may_have_a_rule_of_its_own(
    limiter: Limiter, stranger: Limiter, clock: ManualClock
) -> None:
    put_rules(limiter, api__gold="20/s")
    limiter["api", "gold"].define("30/s", lasts=5)
    stranger["api", "gold"].undefine()
    assert in_force(limiter, "api:gold") == ["20/s"]
    limiter["api", "gold"].define("30/s", lasts=5)
    clock.advance(5)
    assert in_force(limiter, "api:gold") == ["20/s"]


def test_what_nobody_defines_any_more_is_unknown(
    limiter: Limiter, stranger: Limiter, clock: ManualClock
) -> None:
    limiter["new"].define("1/s", lasts=2)
    assert stranger["new"].try_acquire()
    clock.advance(2)
    with pytest.raises(UnknownLimitError):
        stranger["new"].try_acquire()
    limiter["new"].define("1/s")
    stranger["new"].undefine()
    with pytest.raises(UnknownLimitError):
        stranger["new"].try_acquire()


def test_new_code_replaces_what_follows_a_definition_that_ends(
    redis_url: str, limiter: Limiter, clock: ManualClock
) -> None:
    limiter["api"].define("30/s", lasts=5)
    newer = Limiter(redis_url, {"api": "15/s"}, clock=clock)
    newer.register()
    assert in_force(limiter, "api") == ["30/s"]
    clock.advance(5)
    assert in_force(limiter, "api") == ["15/s"]
    newer.store.close()


def test_it_ends_at_that_microsecond(limiter: Limiter, clock: ManualClock) -> None:
    limiter["api"].define("10/s burst 5", lasts=5)
    clock.now += 5 * SECOND - 1
    assert limiter["api"].peek().burst == 5
    clock.now += 1
    assert limiter["api"].peek().burst == 1


def test_set_once_more_it_ends_later_or_never(limiter: Limiter, clock: ManualClock) -> None:
    limiter["api"].define("30/s", lasts=5)
    limiter["api"].define("30/s", lasts=10)
    clock.advance(5)
    assert in_force(limiter, "api") == ["30/s"]
    limiter["api"].define("30/s")
    clock.advance(1000)
    assert in_force(limiter, "api") == ["30/s"]


def test_windows_of_a_calendar_are_renewed_until_the_end(
    limiter: Limiter, client: Any, clock: ManualClock
) -> None:
    day = 86_400
    text = "5/d using fixed-window in Europe/Berlin"
    limiter["api"].define(text, lasts=200 * day, reason="a sale", by="ann")
    for _ in range(4):
        clock.advance(49 * day)
        assert limiter["api"].try_acquire(5)
        assert not limiter["api"].try_acquire()
    packed = client.hget("{throttle}:limits", "api")
    assert b'{"by": "ann", "why": "a sale"}' in packed
    clock.advance(4 * day)
    assert in_force(limiter, "api") == ["10/s"]


# Lines, and starts that are booked ahead.


@pytest.fixture
def lines(make: Make) -> Protocol:
    return make({"api": "10/s"})


def test_what_waits_is_claimed_when_the_definition_ends(lines: Protocol) -> None:
    lines.limiter["api"].define("1/h", lasts=5)
    end = lines.now + 5 * SECOND
    assert lines.park("x", ["api"]).outcome == "admitted"
    assert lines.park("a", ["api"]).wait == 5 * SECOND
    lines.park("b", ["api"])
    lines.now = end - 1
    assert lines.claim(room=9) == []
    taken = lines.drain(0.3)
    assert [task for _, task in taken] == ["a", "b"]
    (first, _), (second, _) = taken
    assert end <= first < end + 150_000
    assert second - first == pytest.approx(100_000, abs=1_000)
    lines.check()


def test_what_waits_already_is_claimed_when_a_new_definition_ends(lines: Protocol) -> None:
    lines.limiter["api"].define("1/h")
    lines.park("x", ["api"])
    assert lines.park("a", ["api"]).wait == 3600 * SECOND
    lines.limiter["api"].define("2/h", lasts=5)
    assert lines.claim() == []
    lines.now += 5 * SECOND + 150_000
    assert [row.id for row in lines.claim()] == ["a"]


@pytest.mark.parametrize("limits", ["1/h", ["1/h", "2 at once"]])
def test_no_start_is_booked_in_the_last_milliseconds(
    make: Make, limits: str | Sequence[str]
) -> None:
    """The wait until the end is short then, but no unit is free before."""
    lines = make({"api": limits})
    lines.limiter["api"].define(limits, lasts=5)
    lines.limiter.register()
    end = lines.now + 5 * SECOND
    for number in range(20):
        lines.park(str(number), ["api"])
    lines.now = end - 10_000
    assert lines.claim(room=20, ahead=20_000, moment=20_000) == []
    assert lines.store.run(lines.gate_call([(["api"], 1)])) == [[0]]
    lines.now = end
    assert lines.claim(room=20, ahead=20_000, moment=20_000) == []
    lines.check()


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_a_call_that_waits_is_granted_nothing_before_the_end(
    redis_url: str, clock: ManualClock, *, is_in_memory: bool
) -> None:
    url = "memory://" if is_in_memory else redis_url
    limiter = Limiter(url, {"api": "10/s"}, clock=clock)
    limiter.register()
    limiter["api"].define("1/h", lasts=5)
    end = clock.now + 5 * SECOND
    assert limiter["api"].try_acquire()
    assert limiter["api"].peek().retry_after == 5
    clock.now = end - 10_000
    starts = []
    for _ in range(4):
        decision = limiter["api"].acquire(max_wait=60)
        assert decision
        starts.append(clock.now + to_us(decision.delay))
    assert starts[0] >= end
    assert all(later - one >= 99_999 for one, later in pairwise(starts))


def look_up(limiter: Limiter, key: str, text: str | None, seconds: float = 5) -> None:
    """Put in force what a function of the code returns for a key."""
    limits = None if text is None else (Limit.parse(text),)
    ref = LimitRef("api", key)
    author = Author.of("ann", "looked up")
    limiter.run_plan(put_looked_up(limiter.plans, ref, limits, to_us(seconds), author))


def test_what_is_looked_up_for_a_key_is_of_the_code(limiter: Limiter, client: Any) -> None:
    look_up(limiter, "gold", "20/s")
    assert in_force(limiter, "api:gold", "api:other") == ["20/s", None]
    assert origins(client)["api:gold"] == "c"
    put_rules(limiter, api__gold="30/s")
    look_up(limiter, "gold", "25/s")
    assert in_force(limiter, "api:gold") == ["30/s"]
    limiter["api", "gold"].define("40/s")
    assert in_force(limiter, "api:gold") == ["40/s"]
    limiter["api", "gold"].undefine()
    put_rules(limiter)
    assert in_force(limiter, "api:gold") == ["25/s"]
    look_up(limiter, "gold", None)
    assert in_force(limiter, "api:gold") == [None]
    assert "api:gold" not in origins(client)


def test_what_is_looked_up_ends(limiter: Limiter, client: Any, clock: ManualClock) -> None:
    for number in range(15):
        look_up(limiter, str(number), "1/s burst 3", seconds=5)
    look_up(limiter, "long", "1/s burst 3", seconds=60)
    assert limiter["api", "7"].peek().burst == 3
    clock.advance(5)
    assert limiter["api", "7"].peek().burst == 1
    for _ in range(2):  # each removes some that have ended
        look_up(limiter, "other", "1/s burst 3", seconds=60)
    assert {*origins(client)} == {"api", "api:long", "api:other"}
    assert limiter["api"].status().own_keys == 2
    assert limiter["api", "long"].peek().burst == 3


def test_what_is_looked_up_may_end_while_another_layer_is_in_force(
    limiter: Limiter, client: Any, clock: ManualClock
) -> None:
    look_up(limiter, "gold", "1/s burst 3", seconds=5)
    limiter["api", "gold"].define("1/s burst 7", lasts=8)
    clock.advance(6)
    assert limiter["api", "gold"].peek().burst == 7
    clock.advance(3)
    assert limiter["api", "gold"].peek().burst == 1
    limiter["api", "gold"].define("1/s burst 7")
    limiter["api", "gold"].undefine()
    assert "api:gold" not in origins(client)


def test_what_is_looked_up_ends_after_another_layer_was_removed(
    limiter: Limiter, client: Any, clock: ManualClock
) -> None:
    for key in ("defined", "weighted"):
        look_up(limiter, key, "1/s burst 3", seconds=5)
    limiter["api", "defined"].define("1/s burst 7", lasts=60)
    limiter["api", "defined"].undefine()
    limiter["api", "weighted"].define(weight=3)
    clock.advance(6)
    look_up(limiter, "other", "1/s burst 3", seconds=60)
    assert {*origins(client)} == {"api", "api:other", "weight api:weighted"}


def test_nothing_is_left_of_definitions_of_keys_that_have_ended(
    limiter: Limiter, client: Any, clock: ManualClock
) -> None:
    for number in range(15):
        limiter["api", number].define("1/s burst 3", lasts=5)
    look_up(limiter, "7", "1/s burst 4", seconds=3)
    limiter["api", 8].define("1/s burst 3", lasts=60)
    clock.advance(5)
    for _ in range(2):  # each removes some that have ended
        limiter["api", "other"].define("1/s burst 3", lasts=60)
    assert {*origins(client)} == {"api", "api:8", "api:other"}
    assert limiter["api"].status().own_keys == 2
    assert [change.action for change in limiter.changes()].count("end") == 14


def test_nothing_is_left_of_weights_of_keys_that_have_ended(
    limiter: Limiter, client: Any, clock: ManualClock
) -> None:
    limiter["api", "gold"].define(weight=3, lasts=5)
    limiter["api", "silver"].define(weight=2)
    limiter["api", "silver"].define("1/s burst 3", weight=4, lasts=8)
    for seconds, left in ((5, {"api:silver", "weight api:silver"}), (5, {})):
        clock.advance(seconds)
        limiter["api", "other"].define(weight=2)
        limiter["api", "other"].undefine()
        assert {*origins(client)} == {"api", *left}
    assert limiter["api"].status().own_keys == 0


def test_only_another_result_of_a_lookup_is_a_change(limiter: Limiter) -> None:
    before = len(limiter.changes())
    look_up(limiter, "gold", "20/s")
    look_up(limiter, "gold", "20/s")
    assert len(limiter.changes()) == before
    look_up(limiter, "gold", "30/s")
    change = limiter.changes()[0]
    assert (change.old, change.new) == ("20/s", "30/s")
    assert "ann" in str(change.author)


def test_a_lookup_cannot_give_slots(limiter: Limiter) -> None:
    with pytest.raises(LimitError, match="cannot become '3 at once'"):
        look_up(limiter, "gold", "3 at once")
