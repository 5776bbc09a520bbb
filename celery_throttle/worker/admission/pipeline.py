"""Attempts that ask the server: one alone, or several that ask in one round trip.

An attempt is a plan, see ``operations/plans.py``, that does not sleep and learns of errors:
where there is no reply, a ``StoreError`` is raised in it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.store.script import Call

if TYPE_CHECKING:
    from celery_throttle.worker.health.backoff import Pace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Confirm:
    """Asks that so many replicas have all that was written before."""

    replicas: int


Attempt = Generator[Call | Confirm, Any, T]


class Attempts:
    """Carries them out.

    Args:
        store: the server that is asked.
        pace: of calls to it.
    """

    def __init__(self, store: Store, pace: Pace) -> None:
        self._store = store
        self._pace = pace

    def alone(self, attempt: Attempt[T]) -> T:
        """Carry out one. Raises what it raises."""
        (result,) = self.together([attempt])
        if isinstance(result, Exception):
            raise result
        return result

    def together(self, attempts: Sequence[Attempt[T]]) -> list[T | Exception]:
        """Carry out several: what each returned or raised, in their order."""
        results: dict[int, T | Exception] = {}
        replies: dict[int, Any] = dict.fromkeys(range(len(attempts)))
        while replies:
            asked: dict[int, Call | Confirm] = {}
            for place, reply in replies.items():
                attempt = attempts[place]
                go_on = attempt.throw if isinstance(reply, StoreError) else attempt.send
                try:
                    asked[place] = go_on(reply)
                except StopIteration as end:
                    results[place] = end.value
                except Exception as error:  # noqa: BLE001  # the others go on
                    results[place] = error
            replies = dict(zip(asked, self._ask(asked.values()), strict=True))
        return [results[place] for place in range(len(attempts))]

    def _ask(self, asked: Collection[Call | Confirm]) -> Iterator[Any]:
        """For each its reply, or the error."""
        began = time.monotonic()
        replies = _replies(self._store, [one for one in asked if isinstance(one, Call)])
        replicas = [one.replicas for one in asked if isinstance(one, Confirm)]
        confirmed = _confirmed(self._store, replicas)
        self._pace.spent(began)
        return (next(replies) if isinstance(one, Call) else confirmed for one in asked)


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
