"""Renews the leases of slots that are held outside tasks, in one thread of a process.

The thread runs while slots are held. After a fork the child starts its own.
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

#: Seconds between two looks for leases to renew. The shortest lease lasts a second.
CHECK_SECONDS = 0.2


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
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, holder: str, refs: Sequence[LimitRef], lease: float) -> None:
        """Renew the slots of a holder from now on, for ``lease`` seconds each time."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._held[holder] = _HeldLease(refs, lease, _next_due(lease))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew_all, name="throttle-slots", daemon=True
                )
                self._thread.start()

    def remove(self, holder: str) -> None:
        """Stop renewing the slots of a holder."""
        if self._pid == os.getpid():
            with self._lock:
                self._held.pop(holder, None)

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
            due = [(holder, held) for holder, held in self._held.items() if held.due <= now]
        for holder, held in due:
            with suppress(Exception):  # whatever failed, the next renewal may succeed
                self._renew(holder, held.refs, held.lease)
            with self._lock:
                if holder in self._held:
                    self._held[holder] = held._replace(due=_next_due(held.lease))
        return True


def _next_due(lease: float) -> float:
    return time.monotonic() + lease / RENEWALS_PER_LEASE
