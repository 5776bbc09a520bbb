"""Attempts that ask the server: one alone, or several that ask in one round trip.

An attempt is a plan, see :mod:`celery_throttle.changes`, that does not sleep and learns of errors:
where there is no reply, a ``StoreError`` is raised in it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeVar

from celery_throttle.errors import StoreError, ThrottleError
from celery_throttle.scripts import Call
from celery_throttle.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Confirm:
    """Asks that so many replicas have all that was written before."""

    replicas: int


Attempt = Generator[Call | Confirm, Any, T]


def alone(store: Store, attempt: Attempt[T]) -> T:
    """Carry out one attempt. Raises what it raises."""
    (result,) = together(store, [attempt])
    if isinstance(result, ThrottleError):
        raise result
    return result


def together(store: Store, attempts: Sequence[Attempt[T]]) -> list[T | ThrottleError]:
    """Carry out several: what each returned or raised, in their order."""
    results: dict[int, T | ThrottleError] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(attempts)))
    while replies:
        asked: dict[int, Call | Confirm] = {}
        for place, reply in replies.items():
            go_on = attempts[place].throw if isinstance(reply, StoreError) else attempts[place].send
            try:
                asked[place] = go_on(reply)
            except StopIteration as end:
                results[place] = end.value
            except ThrottleError as error:
                results[place] = error
        replies = dict(zip(asked, _replies(store, asked.values()), strict=True))
    return [results[place] for place in range(len(attempts))]


def _replies(store: Store, asked: Collection[Call | Confirm]) -> Iterator[Any]:
    """For each its reply, or the error."""
    replies = _replies_to(store, [one for one in asked if isinstance(one, Call)])
    confirmed = _confirmed(store, [one.replicas for one in asked if isinstance(one, Confirm)])
    return (next(replies) if isinstance(one, Call) else confirmed for one in asked)


def _replies_to(store: Store, calls: Sequence[Call]) -> Iterator[Any]:
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
