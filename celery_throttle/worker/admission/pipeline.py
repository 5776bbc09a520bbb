"""Runs attempts to take quota or to park, several of them in one round trip.

For what an attempt is see ``operations/plan.py``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.operations.plan import Attempt, Confirm
from celery_throttle.store.client import Store
from celery_throttle.store.script import Call
from celery_throttle.worker.health.backoff import Backoff

T = TypeVar("T")


class Pipeline:
    """Runs attempts."""

    def __init__(self, store: Store, backoff: Backoff) -> None:
        self._store = store
        self._backoff = backoff

    def run_one(self, attempt: Attempt[T]) -> T:
        """Run one attempt. Raises the error that the attempt raises."""
        (result,) = self.run([attempt])
        if isinstance(result, Exception):
            raise result
        return result

    def run(self, attempts: Sequence[Attempt[T]]) -> list[T | Exception]:
        """Run several attempts; return the result or error of each, in their order."""
        results: dict[int, T | Exception] = {}
        replies: dict[int, Any] = dict.fromkeys(range(len(attempts)))
        while replies:
            steps: dict[int, Call | Confirm] = {}
            for index, reply in replies.items():
                attempt = attempts[index]
                resume = attempt.throw if isinstance(reply, StoreError) else attempt.send
                try:
                    steps[index] = resume(reply)
                except StopIteration as end:
                    results[index] = end.value
                except Exception as error:  # noqa: BLE001  # the others go on
                    results[index] = error
            replies = dict(zip(steps, self._send(steps.values()), strict=True))
        return [results[index] for index in range(len(attempts))]

    def _send(self, steps: Collection[Call | Confirm]) -> Iterator[Any]:
        """Return the reply to each step, or the error."""
        began = time.monotonic()
        replies = _replies(self._store, [step for step in steps if isinstance(step, Call)])
        replicas = [step.replicas for step in steps if isinstance(step, Confirm)]
        confirmed = _confirmed(self._store, replicas)
        self._backoff.record_calls(began)
        return (next(replies) if isinstance(step, Call) else confirmed for step in steps)


def _replies(store: Store, calls: Sequence[Call]) -> Iterator[Any]:
    try:
        return iter(store.run_all(calls) if calls else ())
    except StoreError as error:
        return repeat(error)


def _confirmed(store: Store, replicas: Sequence[int]) -> StoreError | None:
    try:
        if replicas:
            store.confirm(max(replicas))
    except StoreError as error:
        return error
    return None
