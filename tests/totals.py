"""What the counters of a limit say of its lines."""

from __future__ import annotations

from collections.abc import Mapping

from celery_throttle.store.counters import WAIT_BUCKETS

_CLAIMED = tuple(str(bucket) for bucket in range(WAIT_BUCKETS))


def claimed(totals: Mapping[str, int]) -> int:
    """The tasks that were claimed with their units."""
    return sum(totals.get(counter, 0) for counter in _CLAIMED)


def joined(totals: Mapping[str, int]) -> int:
    """How often a task has joined a line."""
    return sum(totals.get(counter, 0) for counter in ("parked", "requeued"))


def left(totals: Mapping[str, int]) -> int:
    """How often a task has left a line."""
    others = sum(totals.get(counter, 0) for counter in ("handed_out", "revoked", "discarded"))
    return claimed(totals) + others
