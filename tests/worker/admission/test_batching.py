"""Requests that are decided, and parked, in one round trip."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.worker.admission.batching import DecisionBatch
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.hooks.timers import ThreadTimers
from celery_throttle.worker.tuning import DECISION_BATCH_SIZE


@pytest.mark.parametrize(("size", "most"), [(100, DECISION_BATCH_SIZE), (600_000, 2), (10**7, 1)])
def test_a_round_has_few_large_messages(size: int, most: int) -> None:
    rounds: list[int] = []
    calls: list[Callable[[], None]] = []

    timers: Any = SimpleNamespace(
        call_after=lambda _, function, args=(): calls.append(lambda: function(*args))
    )
    batch = DecisionBatch(
        lambda requests: rounds.append(len(requests)), timers, Backoff(ThreadTimers())
    )
    for _ in range(20):
        state = SimpleNamespace(move=lambda _: None)
        message = SimpleNamespace(body=b"x" * size)
        batch.add(SimpleNamespace(throttle_state=state, message=message))
    while calls:
        calls.pop()()
    assert sum(rounds) == 20
    assert max(rounds) == most
