"""Renews the leases of slots that are held outside tasks, in one thread of a process.

The thread runs while slots are held, and a little longer. After a fork the child starts its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from celery_throttle.limits.key import LimitRef

#: Renewals within the duration of a lease.
RENEWALS_PER_LEASE = 3

#: Seconds without a held slot after which the thread ends.
LINGER_SECONDS = 1.0


class _HeldLease(NamedTuple):
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

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._held: dict[str, _HeldLease] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, holder: str, refs: Sequence[LimitRef], lease: float) -> None:
        """Renew the slots of a holder from now on, for ``lease`` seconds each time."""
        if self._pid != os.getpid():
            self._reset()
        with self._changed:
            due = time.monotonic() + lease / RENEWALS_PER_LEASE
            is_next = all(due < held.due for held in self._held.values())
            self._held[holder] = _HeldLease(refs, lease, due)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew_all, name="throttle-slots", daemon=True
                )
                self._thread.start()
            elif is_next:
                self._changed.notify()

    def remove(self, holder: str) -> None:
        """Stop renewing the slots of a holder."""
        if self._pid == os.getpid():
            with self._changed:
                self._held.pop(holder, None)

    def _renew_all(self) -> None:
        while self._wait():
            with self._changed:
                now = time.monotonic()
                due = [(holder, held) for holder, held in self._held.items() if held.due <= now]
            for holder, held in due:
                with suppress(Exception):  # whatever failed, the next renewal may succeed
                    self._renew(holder, held.refs, held.lease)
                with self._changed:
                    if holder in self._held:
                        due_at = time.monotonic() + held.lease / RENEWALS_PER_LEASE
                        self._held[holder] = held._replace(due=due_at)

    def _wait(self) -> bool:
        """Wait until a renewal is due; False if no slot has been held for a while."""
        with self._changed:
            if not self._held:
                self._changed.wait(LINGER_SECONDS)
            if not self._held:
                self._thread = None
                return False
            due = min(held.due for held in self._held.values())
            self._changed.wait(max(0.0, due - time.monotonic()))
        return True
