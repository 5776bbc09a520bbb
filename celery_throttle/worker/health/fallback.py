"""Decides for one worker during an outage, as the clause ``outage`` of each limit says.

``local``: the worker enforces its share, see :mod:`celery_throttle.algorithms.share`. Each share
starts empty, as no worker knows what the server admitted a moment ago. ``open``: the limit does not
count. ``closed``: nothing passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.algorithms.share import make_share
from celery_throttle.algorithms.state import ceil_div
from celery_throttle.limits.cost import MILLION, to_units
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import Requirement, has_slots
from celery_throttle.worker import tuning


@dataclass(eq=False, repr=False)
class Fallback:
    """Decides from the moment when the server was lost until it is back."""

    #: Those in force when the server was lost: of names, and of keys with their own.
    limits: Mapping[LimitRef, Sequence[Limit]]
    workers: int  #: the number of live workers then, this one included
    #: Returns how many slots of a name and key the tasks of this worker hold.
    held_slots: Callable[[LimitRef], int]
    #: Monotonic time in microseconds before which nothing is taken from limits that count: until
    #: then the worker may learn how many workers there are.
    begins: int = 0
    #: Names that are paused, and until when in monotonic seconds; infinity for a pause that lasts
    #: until ``resume``.
    pauses: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._empty_all()

    def _empty_all(self) -> None:
        """Begin with no shares; each is empty when it comes into force."""
        self._local = MemoryLimits()
        self._shares: dict[LimitRef, tuple[Limit, ...]] = {}
        #: When (us) the last of the waiting tasks may try.
        self._last_try: dict[LimitRef, int] = {}

    def wait(self, requirement: Requirement, now: int, *, waited: bool) -> int | None:
        """Take what a task requires, or return how long the task has to wait before its next try.

        ``now`` is the monotonic time in microseconds; ``waited``: whether the task has waited as
        long as the last call returned.

        Returns:
            0 if the units were taken and the task may run. Otherwise microseconds, which grow with
            each task that waits for the same limit. None if the task has to wait for the server.
        """
        if len(self._shares) >= tuning.OUTAGE_SHARE_COUNT:
            self._empty_all()
        limits = {ref: self._counting_limits(ref) for ref in requirement.refs}
        if any(limit.outage == "closed" for own in limits.values() for limit in own):
            return None
        begins = max((self._begins_at(ref) for ref in requirement.refs if limits[ref]), default=0)
        if begins == inf:
            return None
        if now < begins:
            return self._schedule(requirement, round(begins), tuning.OUTAGE_SPACING_US) - now
        costs, spacing, wait = {}, 1, 0
        for ref, cost in zip(requirement.refs, requirement.costs, strict=True):
            rates = [limit for limit in limits[ref] if not has_slots(limit)]
            has_slot = self._has_slot(ref, limits[ref])
            if has_slot is None or not self._ensure_share(ref, rates, cost, now):
                return None
            wait = wait if has_slot else tuning.OUTAGE_SLOT_RETRY_US
            if rates:
                costs[ref] = to_units(cost)
                spacing = max(spacing, *(_interval(own, cost) for own in self._shares[ref]))
        if not wait and (waited or self._last_try_of(requirement) <= now):
            decision = self._local.acquire(costs, now) if costs else None
            if decision is None or decision.allowed:
                return 0
            wait = round((decision.retry_after or 0) * MILLION)
        return self._schedule(requirement, now + wait, spacing) - now

    def _begins_at(self, ref: LimitRef) -> float:
        """Return the time (us) before which nothing is taken from a limit."""
        return max(self.begins, self.pauses.get(ref.name, 0.0) * MILLION)

    def _last_try_of(self, requirement: Requirement) -> int:
        return max((self._last_try.get(ref, 0) for ref in requirement.refs), default=0)

    def _schedule(self, requirement: Requirement, at: int, spacing: int) -> int:
        """Return when (us) a task may try: ``at``, or later behind others that wait."""
        next_try = max(at, self._last_try_of(requirement) + spacing)
        self._last_try.update(dict.fromkeys(requirement.refs, next_try))
        return next_try

    def _counting_limits(self, ref: LimitRef) -> list[Limit]:
        own = self.limits.get(ref)
        limits = self.limits[LimitRef(ref.name, None)] if own is None else own
        return [limit for limit in limits if limit.outage != "open"]

    def _has_slot(self, ref: LimitRef, limits: Sequence[Limit]) -> bool | None:
        """Return whether this worker has a free slot, if the limits have slots.

        None if there are fewer slots than workers, so that this worker has no share of them.
        """
        shares = [limit.burst // self.workers for limit in limits if has_slots(limit)]
        return None if 0 in shares else all(self.held_slots(ref) < slots for slots in shares)

    def _ensure_share(self, ref: LimitRef, limits: Sequence[Limit], cost: int, now: int) -> bool:
        """Put a share of the limits in force that allows the cost; False if there is none."""
        if not limits:
            return True
        known = self._shares.get(ref)
        if known and all(cost <= own.burst * MILLION for own in known):
            return True
        shares = tuple(filter(None, (make_share(limit, self.workers, cost) for limit in limits)))
        if len(shares) < len(limits):
            return False
        self._shares[ref] = shares
        self._local.define(ref, shares, now)
        if known is None:
            self._local.use_up(ref, now)
        return True


def _interval(limit: Limit, cost: int) -> int:
    """Return the microseconds from one task of some cost to the next."""
    assert isinstance(limit.rate, Rate)  # noqa: S101  # a share is always a rate
    return ceil_div(cost * limit.rate.period_us, limit.rate.count * MILLION)
