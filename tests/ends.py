"""Both ends of a limiter, the one that waits and that for asyncio, called in one way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_throttle.limiter.leases import Slot
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.key import LimitRef
from tests.shards import stores_of


class End:
    """Calls the methods of a limiter, or of what it gave, by one of its two ends."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._target = target
        self._loop = loop

    def __getitem__(self, item: Any) -> End:
        return End(self._target[item], self._loop)

    @property
    def ref(self) -> LimitRef:
        """The limit and key of a handle."""
        ref: LimitRef = self._target.ref
        return ref

    def __getattr__(self, name: str) -> Callable[..., Any]:
        loop = self._loop
        method: Callable[..., Any] = getattr(self._target, name)
        twin = getattr(self._target, f"a{name}", None)
        if loop is None or name == "slot":
            return method
        if twin is None:
            return lambda *args, **options: loop.run_until_complete(
                asyncio.to_thread(method, *args, **options)
            )
        return lambda *args, **options: loop.run_until_complete(twin(*args, **options))

    @contextmanager
    def hold(self, slot: Slot) -> Iterator[Decision]:
        """The slot for the time of a ``with``, or of an ``async with``."""
        if self._loop is None:
            with slot as decision:
                yield decision
            return
        decision = self._loop.run_until_complete(slot.__aenter__())
        try:
            yield decision
        finally:
            self._loop.run_until_complete(slot.__aexit__(*sys.exc_info()))


MakeEnd = Callable[[Limiter], End]


def make_ends(kind: str) -> Iterator[MakeEnd]:
    """Makes ends of one kind, "sync" or "asyncio", and closes what they used."""
    limiters: list[Limiter] = []
    loop = None if kind == "sync" else asyncio.new_event_loop()

    def end(limiter: Limiter) -> End:
        limiters.append(limiter)
        return End(limiter, loop)

    yield end
    for store in {store for limiter in limiters for store in stores_of(limiter)}:
        if loop is None:
            store.close()
        else:
            loop.run_until_complete(store.aclose())
    if loop is not None:
        loop.close()
