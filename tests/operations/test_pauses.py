"""Pauses: their ends, and clocks that are set back; the time is an argument."""

from __future__ import annotations

import pytest

from celery_throttle import Feedback, Limiter
from celery_throttle.testing import ManualClock
from tests.protocol import SECOND

LIMITS = {"api": "10/s", "mail": "10/s"}


@pytest.mark.parametrize("key", [None, "a"])
def test_a_pause_lasts_no_longer_than_it_did_when_the_clock_steps_back(
    limiter: Limiter, clock: ManualClock, key: str | None
) -> None:
    ref = limiter["api"] if key is None else limiter["api", key]
    ref.pause(10)
    clock.now += 4 * SECOND
    clock.now -= 3600 * SECOND
    assert ref.peek().paused == 10  # nobody knows how much of it had passed
    clock.now += 9 * SECOND
    assert not ref.try_acquire()
    clock.now += 1 * SECOND
    assert ref.try_acquire()


def test_an_answer_about_two_limits_does_not_carry_the_pause_of_one_to_the_other(
    limiter: Limiter, clock: ManualClock
) -> None:
    limiter["api"].pause(None)
    limiter.learn(["api", "mail"], Feedback(refused=True, stop=1.0))
    clock.advance(1.0)
    assert not limiter["api"].try_acquire()
    assert limiter["mail"].try_acquire()


def test_a_pause_that_has_just_ended_cannot_be_lifted(limiter: Limiter) -> None:
    limiter["api"].pause(0)
    assert not limiter["api"].resume()
