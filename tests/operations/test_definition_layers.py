"""Layers of definitions: the code, the rules file, and what is set at run time, for a time or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_throttle.errors import CostError
from celery_throttle.limiter import Limiter
from celery_throttle.limits.duration import to_us
from celery_throttle.testing import ManualClock
from tests.operations.layers import LIMITS_OF_EACH_ALGORITHM
from tests.sizes import examples

START = 1_700_000_000_000_000
END = 10.0

_limits = st.sampled_from(LIMITS_OF_EACH_ALGORITHM)
_step = st.one_of(
    st.tuples(st.just("acquire"), st.sampled_from([1, 1, 2, 0.5])),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.05, 0.4, 3.0, 7.0])),
    st.tuples(st.just("register"), st.just(0)),
)
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
        self.limiter.define("api", bounded, key=key, seconds=seconds)

    def step(self, kind: str, amount: Any) -> tuple[bool, int, int, float] | None:
        """Return what an acquisition decides; None if its cost can never pass, or for others."""
        if kind == "advance":
            self._advance(to_us(amount))
        elif kind == "register":
            self.limiter.register()
        elif kind == "define the name":
            self.limiter.define("api", amount)
        else:
            with suppress(CostError):
                decision = self.limiter["api", "a"].acquire(amount)
                allowed, remaining = decision.allowed, decision.remaining
                return allowed, remaining, decision.limit, decision.reset_after
        return None

    def _advance(self, us: int) -> None:
        until = self.clock.now + us
        if not self._has_ended and until >= self._end:
            self._has_ended = True
            if not self._ends_by_itself:
                self.clock.now = self._end
                self.limiter.undefine("api", key=self.key)
        self.clock.now = until

    def close(self) -> None:
        self.limiter.store.close()


Users = tuple[User, User, User]

_played = settings(
    max_examples=examples(1000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@contextmanager
def make_users(url: str, code: str, bounded: str, key: str | None, used: int) -> Iterator[Users]:
    """Of three users with the same use, the definition of the first two ends by itself."""
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    users = (
        User(url, "{throttle}", code, ends_by_itself=True),
        User(url, "{other}", code, ends_by_itself=False),
        User("memory://", "{throttle}", code, ends_by_itself=True),
    )
    for user in users:
        for _ in range(used):
            user.step("acquire", 1)
        user.define(bounded, key)
    yield users
    for user in users:
        user.close()


@_played
@given(_limits, _limits, st.sampled_from([None, "a"]), st.integers(0, 3), st.lists(_step))
def test_a_definition_ends_as_if_it_were_removed_then(
    redis_url: str, code: str, bounded: str, key: str | None, used: int, steps: Steps
) -> None:
    with make_users(redis_url, code, bounded, key, used) as users:
        for step in steps:
            by_itself, by_a_call, in_memory = (user.step(*step) for user in users)
            assert by_itself == by_a_call == in_memory, step


@_played
@given(_limits, _limits, st.integers(0, 3), st.lists(st.one_of(_step, _change)))
def test_a_key_is_never_given_more_if_its_name_changes_meanwhile(
    redis_url: str, code: str, bounded: str, used: int, steps: Steps
) -> None:
    """What drains between two changes that nobody has seen does not count."""
    with make_users(redis_url, code, bounded, "a", used) as users:
        granted = [0.0] * len(users)
        for step in steps:
            for i, user in enumerate(users):
                decision = user.step(*step)
                if decision and decision[0]:
                    granted[i] += step[1]
            by_itself, by_a_call, in_memory = granted
            assert by_itself <= by_a_call == in_memory, step
