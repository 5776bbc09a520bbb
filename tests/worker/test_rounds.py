"""Calls to several servers, of which some do not answer."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from celery_throttle.worker.rounds import run_round


def test_functions_are_called_one_after_the_other_in_the_same_thread() -> None:
    called: list[tuple[int, threading.Thread]] = []

    def call(number: int) -> None:
        called.append((number, threading.current_thread()))

    run_round([partial(call, number) for number in range(5)], patience=60)
    assert called == [(number, threading.current_thread()) for number in range(5)]


def test_after_one_that_takes_long_the_others_are_called_at_the_same_time() -> None:
    """So a round lasts as long as two calls at most."""
    others = threading.Barrier(4)

    def wait_for_others() -> None:
        others.wait(30)

    run_round([partial(time.sleep, 0.05), *[wait_for_others] * 4], patience=0.02)
    assert not others.broken
    run_round([wait_for_others] * 4, patience=0.0)
    assert not others.broken


@pytest.mark.parametrize("patience", [60, 0.0])
def test_an_error_is_logged_and_ends_no_other_call(
    caplog: pytest.LogCaptureFixture, patience: float
) -> None:
    called: list[int] = []

    def fail() -> None:
        raise ValueError("an error of one shard")

    run_round([fail, partial(called.append, 1), fail, partial(called.append, 2)], patience)
    assert sorted(called) == [1, 2]
    assert caplog.text.count("ValueError: an error of one shard") == 2
