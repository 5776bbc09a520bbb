"""The mode of a shard: its server decides, or, during an outage, the worker by itself.

Each change of mode is logged once, announced by the signal ``throttle_mode_changed``, and counted
for ``celery inspect stats`` and, at the end of the outage, for the metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from celery.utils.log import get_logger

from celery_throttle import signals
from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.algorithms.share import make_share
from celery_throttle.algorithms.state import ceil_div
from celery_throttle.errors import StoreError
from celery_throttle.limits.cost import MILLION, to_units
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import Requirement, has_slots
from celery_throttle.store.script import Call, script
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.health.membership import Membership
from celery_throttle.worker.slots import TaskSlots

logger = get_logger(__name__)


@dataclass(eq=False, repr=False)
class OutageMode:
    """Switches one shard of a worker to outage mode and back, and decides during an outage."""

    throttle: AppLimits
    membership: Membership
    slots: TaskSlots
    count: int = 0  #: number of outages since the worker started
    ended: float = 0.0  #: monotonic time at which the last outage ended; 0.0 if there was none

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._fallback: Fallback | None = None
        self._began = 0.0
        self._seconds = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the server is lost."""
        return self._fallback is not None

    @property
    def _has_limits(self) -> bool:
        """Whether there are limits; without them an outage is no error."""
        return bool(self.throttle.limits or self.throttle.rules_file)

    def begin(self, error: StoreError) -> None:
        """Begin an outage: the server does not answer. Thread-safe."""
        workers = self.membership.workers
        grace = 0.0 if workers else self.throttle.settings.outage_grace
        with self._lock:
            is_new = self._fallback is None
            if is_new:
                self._began = time.monotonic()
                self._fallback = Fallback(
                    self.membership.limits(),
                    workers or 1,
                    lambda ref: self.slots.count(self.throttle.keys.entries(ref)),
                    to_us(self._began + grace),
                    self.membership.pauses(),
                )
                self.count += 1
        # Only now, as the thread of the heartbeats ends the outage once the server replies. Also
        # during an outage: the server may just have been back, which is not known here yet.
        self.membership.reconnect()
        if not is_new:
            return
        if not self._has_limits:
            logger.info("No task leaves its line until the server is back: %s", error)
        elif grace:
            logger.error(
                "OUTAGE: %s. This worker does not know the number of workers, so nothing with a "
                "limit starts here before %s (throttle_outage_grace: %g s), except where all "
                "limits say 'outage open'. Then it enforces the whole of each limit. Set "
                "throttle_outage_workers to avoid this",
                error,
                time.strftime("%H:%M:%S", time.localtime(time.time() + grace)),
                grace,
            )
        else:
            source = "throttle_outage_workers" if workers else "not known"
            is_reported = self.membership.reported_workers is not None
            logger.error(
                "OUTAGE: %s. This worker enforces 1/%d of each limit%s",
                error,
                workers or 1,
                "" if is_reported else f"; the number of workers is {source}",
            )
        self._send_signal("outage")

    def end(self) -> None:
        """End the outage: the server is back."""
        with self._lock:
            if self._fallback is None:
                return
            self._fallback = None
            self.ended = time.monotonic()
            seconds = self.ended - self._began
            self._seconds += seconds
        level = logging.WARNING if self._has_limits else logging.INFO
        logger.log(level, "The server is back after %.1f s and decides again", seconds)
        # Added to those of all workers, for the metrics. Not repeated: the call that failed may
        # have been executed, and would count twice.
        call = Call(script("count_outage"), [self.throttle.keys.outages], [to_us(seconds)])
        with suppress(StoreError):
            self.throttle.store.run(call)
        self._send_signal("normal")

    def wait(self, requirement: Requirement, *, waited: bool) -> float | None:
        """Take what a task requires, or return the seconds that the task has to wait.

        Returns:
            0.0 if the task may run; None if it has to wait until the server is back.
        """
        fallback = self._fallback
        if fallback is None:  # the outage has just ended
            return None
        now = int(time.monotonic() * MICROSECONDS)
        wait = fallback.wait(requirement, now, waited=waited)
        return None if wait is None else wait / MICROSECONDS

    def stats(self) -> dict[str, Any]:
        """Return the mode, and number and seconds of outages, for ``celery inspect stats``."""
        seconds = self._seconds + (time.monotonic() - self._began if self.is_on else 0.0)
        mode = "outage" if self.is_on else "normal"
        return {"mode": mode, "outages": self.count, "seconds": round(seconds, 1)}

    def _send_signal(self, mode: str) -> None:
        signals.throttle_mode_changed.send(
            sender=self.throttle.app,
            mode=mode,
            count=self.count,
            server=self.throttle.store.url,
            prefix=self.throttle.keys.prefix,
        )


@dataclass(eq=False, repr=False)
class Fallback:
    """Decides for one worker during an outage, as the clause ``outage`` of each limit says.

    ``local``: the worker enforces its share, see :mod:`celery_throttle.algorithms.share`. Each
    share starts empty, as no worker knows what the server admitted a moment ago. ``open``: the
    limit does not count. ``closed``: nothing passes.
    """

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

    def _bound_memory(self) -> None:
        if len(self._shares) >= tuning.OUTAGE_SHARE_COUNT:
            self._empty_all()
        elif len(self._last_try) >= tuning.OUTAGE_SHARE_COUNT:  # of keys without shares, as slots
            self._last_try.clear()

    def wait(self, requirement: Requirement, now: int, *, waited: bool) -> int | None:
        """Take what a task requires from all its limits, or return when it may try again.

        ``now``: monotonic time in microseconds; ``waited``: whether the task has waited as
        long as the last call returned.

        Returns:
            0 if the units were taken and the task may run. Otherwise microseconds, which grow with
            each task that waits for the same limit. None if the task has to wait for the server.
        """
        self._bound_memory()
        limits: dict[LimitRef, list[Limit]] = {}
        for ref in requirement.refs:
            counting = self._counting_limits(ref)
            if counting is None or any(limit.outage == "closed" for limit in counting):
                return None
            limits[ref] = counting
        paused = [self.pauses.get(ref.name, 0.0) * MILLION for ref, own in limits.items() if own]
        begins = max(self.begins, *paused) if paused else 0
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

    def _last_try_of(self, requirement: Requirement) -> int:
        return max((self._last_try.get(ref, 0) for ref in requirement.refs), default=0)

    def _schedule(self, requirement: Requirement, at: int, spacing: int) -> int:
        """Return when (us) a task may try: ``at``, or later behind others that wait."""
        next_try = max(at, self._last_try_of(requirement) + spacing)
        self._last_try.update(dict.fromkeys(requirement.refs, next_try))
        return next_try

    def _counting_limits(self, ref: LimitRef) -> list[Limit] | None:
        """Return the limits that count; None if the name was not known before the outage."""
        limits = self.limits.get(ref, self.limits.get(LimitRef(ref.name, None)))
        return None if limits is None else [each for each in limits if each.outage != "open"]

    def _has_slot(self, ref: LimitRef, limits: Sequence[Limit]) -> bool | None:
        """Return whether this worker has a free slot, if the limits have slots.

        None if there are fewer slots than workers, so that this worker has no share of them.
        """
        # No feedback arrives during an outage, so adaptive slots are as few as they may be.
        slots = [limit.lowest or limit.burst for limit in limits if has_slots(limit)]
        shares = [number // self.workers for number in slots]
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
