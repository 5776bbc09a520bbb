"""What the counters of a limit say of its lines."""

from __future__ import annotations

from collections.abc import Mapping

from celery_throttle.observe.totals import WAIT_BUCKETS

_CLAIMED = tuple(str(bucket) for bucket in range(WAIT_BUCKETS))


def claimed(totals: Mapping[str, int]) -> int:
    """The tasks that were claimed with their units."""
    return sum(totals.get(counter, 0) for counter in _CLAIMED)


def granted(totals: Mapping[str, int]) -> int:
    """Millionths of units: each task that was claimed with its units stands for one of them."""
    return totals.get("granted", 0) + claimed(totals) * 1_000_000


def joined(totals: Mapping[str, int]) -> int:
    """How often a task has joined a line."""
    return sum(totals.get(counter, 0) for counter in ("parked", "requeued"))


def left(totals: Mapping[str, int]) -> int:
    """How often a task has left a line."""
    others = ("handed_out", "replaced", "revoked", "discarded", "removed")
    return claimed(totals) + sum(totals.get(counter, 0) for counter in others)
