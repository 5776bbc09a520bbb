"""Renews the leases of slots that are held outside tasks: one thread for all of a process.

It is there only while slots are held, and a little longer; after a fork the child has one of its
own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.limits.key import LimitRef

if TYPE_CHECKING:
    from celery_throttle.limiter import Limiter

#: A lease is renewed this many times before it would run out.
TIMES = 3

#: Seconds for which the thread waits for another slot to be held before it ends.
LINGER = 1.0


class _Held(NamedTuple):
    refs: Sequence[LimitRef]
    lease: float
    due: float


class Renewals:
    """Of one limiter. Called from any thread or event loop.

    Args:
        limiter: whose slots they are.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._held: dict[str, _Held] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, holder: str, refs: Sequence[LimitRef], lease: float) -> None:
        """Renew from now on what a holder has, for ``lease`` seconds each time."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            due = time.monotonic() + lease / TIMES
            soonest = all(due < held.due for held in self._held.values())
            self._held[holder] = _Held(refs, lease, due)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew_all, name="throttle-slots", daemon=True
                )
                self._thread.start()
            elif soonest:
                self._changed.notify()

    def remove(self, holder: str) -> None:
        """The slot is held no more."""
        if self._pid == os.getpid():
            with self._changed:
                self._held.pop(holder, None)

    def _renew_all(self) -> None:
        while self._waited():
            with self._changed:
                now = time.monotonic()
                due = [(holder, held) for holder, held in self._held.items() if held.due <= now]
            for holder, held in due:
                self._renew(holder, held)

    def _waited(self) -> bool:
        """Wait until one is due; False if there have been none for a while."""
        with self._changed:
            if not self._held:
                self._changed.wait(LINGER)
            if not self._held:
                self._thread = None
                return False
            due = min(held.due for held in self._held.values())
            self._changed.wait(max(0.0, due - time.monotonic()))
        return True

    def _renew(self, holder: str, held: _Held) -> None:
        with suppress(Exception):  # whatever it was, the next one may pass
            named = [(ref, holder) for ref in held.refs]
            self._limiter.run_plan(self._limiter.plans.renew(named, held.lease))
        with self._changed:
            if holder in self._held:
                due = time.monotonic() + held.lease / TIMES
                self._held[holder] = held._replace(due=due)
