"""Renews the leases of slots that are held outside tasks, in one thread of a process.

The thread runs while slots are held. After a fork the child starts its own. If nothing refers to
the owner of a slot any more, as when its event loop was closed, nobody can release the slot: its
lease is not renewed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from celery_throttle.limits.key import LimitRef

#: Renewals within the duration of a lease.
RENEWALS_PER_LEASE = 3

#: Seconds between two looks for leases to renew. The shortest lease lasts a second.
CHECK_SECONDS = 0.2

#: Seconds until a failed renewal is repeated, at most: the lease may outlast an outage.
RETRY_SECONDS = 1.0


class _HeldLease(NamedTuple):
    holder: str
    refs: Sequence[LimitRef]
    lease: float
    due: float


class LeaseRenewer:
    """Renews the leases of one limiter. Thread-safe.

    Args:
        renew: renews the slots of a holder (name, limits, seconds of the lease), or raises.
    """

    def __init__(self, renew: Callable[[str, Sequence[LimitRef], float], None]) -> None:
        self._renew = renew
        self._reset()
        _register_at_fork()
        _renewers.add(self)

    def _reset(self) -> None:
        self._held = WeakKeyDictionary[object, _HeldLease]()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, owner: object, holder: str, refs: Sequence[LimitRef], lease: float) -> None:
        """Renew the slots of a holder from now on, for ``lease`` seconds each time.

        ``owner``: the object that releases them. Without it, they are not renewed.
        """
        with self._lock:
            self._held[owner] = _HeldLease(holder, refs, lease, _due_after(lease))
            if self._thread is None:
                thread = threading.Thread(
                    target=self._renew_all, name="throttle-slots", daemon=True
                )
                thread.start()
                self._thread = thread

    def remove(self, owner: object) -> None:
        """Stop renewing the slots of an owner."""
        with self._lock:
            self._held.pop(owner, None)

    def _renew_all(self) -> None:
        while self._renew_due():
            time.sleep(CHECK_SECONDS)

    def _renew_due(self) -> bool:
        """Renew the leases that are due; False if no slot is held, so that the thread ends."""
        with self._lock:
            if not self._held:
                self._thread = None
                return False
            now = time.monotonic()
            due = [(owner, held) for owner, held in self._held.items() if held.due <= now]
        for owner, held in due:
            next_due = _due_after(held.lease, RETRY_SECONDS)
            with suppress(Exception):  # whatever failed, the next renewal may succeed
                self._renew(held.holder, held.refs, held.lease)
                next_due = _due_after(held.lease)
            with self._lock:
                if self._held.get(owner) is held:
                    self._held[owner] = held._replace(due=next_due)
        return True


#: Of this process.
_renewers = WeakSet[LeaseRenewer]()


def _reset_all() -> None:
    """Begin anew in a child, which has no threads yet: the slots and the thread are the parent's.

    Their locks may be held by threads that only the parent has.
    """
    for renewer in list(_renewers):
        renewer._reset()  # noqa: SLF001  # of this module


@cache
def _register_at_fork() -> None:
    os.register_at_fork(after_in_child=_reset_all)


def _due_after(lease: float, most: float = inf) -> float:
    return time.monotonic() + min(most, lease / RENEWALS_PER_LEASE)
