"""Takes quota for tasks at the gate, with as few round trips as possible.

The call for a task that has a process also takes units for the tasks that will have a process after
it. When these run short, the next call is sent ahead, and its reply is read when a task needs it.
For a limit that is passed many times a second one call takes several units, see ``quota_cache.py``.
A limit that was full a moment ago is not asked again. Units for a task that has no process yet may
be used for 20 ms, so no start is later than that after its admission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from celery.worker import state

from celery_throttle.errors import StoreError, ThrottleError
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.operations.define import register_missing
from celery_throttle.operations.replies import ReplyStatus, check_reply
from celery_throttle.store.client import PendingCall
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.quota_cache import Block
from celery_throttle.worker.admission.requested_limits import limits_of, requirement_of
from celery_throttle.worker.demand import Demand
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.task_state import PassesGate, Status

#: Microseconds that a start may be booked ahead.
AHEAD = to_us(tuning.BOOKING_HORIZON_SECONDS)

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A call that was sent ahead."""

    since: float  #: monotonic time when it was sent
    wants: Sequence[GateRequest]
    begun: PendingCall


@dataclass(eq=False, repr=False)
class Quota:
    """Takes and caches the quota of one worker."""

    throttle: AppLimits
    backoff: Backoff
    #: Returns the requests that wait for a process, the next first.
    waiting: Callable[[], Iterable[Any]]

    def __post_init__(self) -> None:
        self._blocks: dict[Requirement, Block] = {}
        self._full: dict[Requirement, float] = {}
        self._demand = Demand()
        self._ahead: _Ahead | None = None
        self._round_trip = 0.0

    def in_hand(self, requirement: Requirement) -> float | None:
        """Use quota that was taken before: return the seconds until its time, or None."""
        now = time.monotonic()
        self._demand.count(None, now)
        self._demand.count(requirement, now)
        wait = self._use(requirement, now)
        if wait is None and self._ahead:
            self._collect(self._ahead)
            wait = self._use(requirement, time.monotonic())
        is_prompt = self._round_trip < tuning.MAX_ROUND_TRIP_SECONDS
        if wait is not None and not self._ahead and is_prompt:
            block = self._block(requirement, now)
            if block is None or block.is_short(now):
                self._send_ahead(self._want(requirement, now), now)
        return wait

    def is_better_gathered(self, requirement: Requirement) -> bool:
        """Return whether tasks come fast, so that one call should take units for several."""
        now = time.monotonic()
        is_fast = self._demand.recent(None, now) > tuning.QUOTA_BATCH_SIZE
        return is_fast and self._full.get(requirement, 0.0) <= now

    def take(self, requirement: Requirement) -> float | None:
        """Take quota. Return the seconds until its time; None if there is none within 20 ms.

        Raises:
            StoreError: the server cannot be asked.
            CostError, UnknownLimitError: see :func:`.replies.check_reply`.
        """
        now = time.monotonic()
        if self._full.get(requirement, 0.0) > now:
            return None
        self._take(self._want(requirement, now), now)
        return self._use(requirement, time.monotonic())

    def is_free(self, requirement: Requirement) -> None:
        """Forget that a limit was full: it had units after all."""
        self._full.pop(requirement, None)

    def _use(self, requirement: Requirement, now: float) -> float | None:
        block = self._block(requirement, now)
        return block.use(now) if block else None

    def _block(self, requirement: Requirement, now: float) -> Block | None:
        """Return the first block whose units may still be used."""
        first = block = self._blocks.get(requirement)
        while block and not block.left(now):
            block = block.then
        if block and block is not first:
            self._blocks[requirement] = block
        elif first and not block:
            del self._blocks[requirement]
        return block

    # Calls.

    def _take(self, want: GateRequest, now: float) -> None:
        """Take units for a task that has a process, and for the tasks after it."""
        wants = [want, *self._soon(want.requirement.refs, now)]
        refs = [ref for want in wants for ref in want.requirement.refs]
        plans, store = self.throttle.plans, self.throttle.store
        call = gate_call(plans, wants, AHEAD)
        try:
            replies = store.run(call)
            if replies[0][0] == ReplyStatus.UNKNOWN:
                self.throttle.run_plan(register_missing(plans, refs, int(replies[0][2])))
                replies = store.run(call)
        finally:
            self.backoff.record_calls(now)
        replied = time.monotonic()
        self._round_trip = replied - now
        self._keep(wants, replies, replied, 0.0)
        check_reply(replies[0], [want.requirement for want in wants], plans.limits)

    def _send_ahead(self, want: GateRequest, now: float) -> None:
        """Send a call for tasks to come, without waiting for its reply.

        It takes more of the same units if tasks come fast, and units for waiting tasks if the
        second of them has none yet.
        """
        wants = [want] if want.times > tuning.QUOTA_BATCH_SIZE else []
        following = list(islice(self.waiting(), 2))
        if following and self._want_of(following[-1], now) is not None:
            wants += self._soon([ref for want in wants for ref in want.requirement.refs], now)
        if wants:
            call = gate_call(self.throttle.plans, wants, AHEAD)
            with suppress(StoreError):  # a later call raises it
                self._ahead = _Ahead(now, wants, self.throttle.store.begin(call))

    def _collect(self, ahead: _Ahead) -> None:
        """Read the reply to a call that was sent ahead. A later call raises its errors."""
        self._ahead = None
        began = time.monotonic()
        try:
            replies = self.throttle.store.finish(ahead.begun)
        except StoreError:
            return
        finally:
            self.backoff.record_calls(began)
        replied = time.monotonic()
        self._round_trip = replied - began
        self._keep(ahead.wants, replies, ahead.since, replied - ahead.since)

    def _keep(
        self, wants: Sequence[GateRequest], replies: list[list[int]], since: float, later: float
    ) -> None:
        """Cache what was taken. Starts count from ``later`` seconds after ``since``."""
        if len(self._blocks) > tuning.QUOTA_CACHE_SIZE:
            self._blocks = {key: one for key, one in self._blocks.items() if one.left(since)}
        if len(self._full) > tuning.QUOTA_CACHE_SIZE:
            self._full = {full: until for full, until in self._full.items() if until > since}
        # A single reply is for all of them: nothing was taken.
        for want, reply in zip(wants, replies, strict=False):
            if reply[0] == ReplyStatus.ALLOWED:
                _, units, at_once, wait, apart_ns, good_us = reply
                begins, apart = later + wait / MICROSECONDS, apart_ns / NANOSECONDS
                block = Block(since, units, at_once, begins, apart, good_us / MICROSECONDS)
                present = self._blocks.setdefault(want.requirement, block)
                if present is not block:  # it is nearly used up
                    present.then = block
            elif reply[0] == ReplyStatus.REFUSED:
                self._full[want.requirement] = since + tuning.BOOKING_HORIZON_SECONDS

    # What to take.

    def _want(self, requirement: Requirement, now: float) -> GateRequest:
        times = max(1, self._demand.recent(requirement, now)) if len(requirement.refs) == 1 else 1
        return GateRequest(requirement, times)

    def _soon(self, named: Iterable[LimitRef], now: float) -> Iterator[GateRequest]:
        """Yield the needs of tasks that will have a process within 20 ms, at their present rate.

        None of them needs a limit and key that the call names already: blocks serve those.
        """
        most = min(tuning.QUOTA_BATCH_SIZE, self._demand.recent(None, now) // 2)
        taken = set(named)
        for request in self.waiting():
            if most <= 0:
                return
            want = self._want_of(request, now)
            if want is not None and taken.isdisjoint(want.requirement.refs):
                taken.update(want.requirement.refs)
                most -= 1
                yield want

    def _want_of(self, request: Any, now: float) -> GateRequest | None:
        """Return what a request will take at the gate; None if that is nothing, or not certain."""
        if not _is_certain(request):
            return None
        try:
            limits = limits_of(self.throttle, request)
            if limits is None or limits.slots:
                return None
            requirement = requirement_of(limits, request)
        except ThrottleError:  # it is raised again at the gate
            return None
        if self._full.get(requirement, 0.0) > now or self._block(requirement, now):
            return None
        return self._want(requirement, now)


def _is_certain(request: Any) -> bool:
    """Return whether a request will surely take its units: it is not revoked and cannot expire."""
    return (
        issubclass(type(request), PassesGate)
        and request.throttle_state.claim is None
        and request.throttle_state.status not in (Status.SCHEDULED, Status.ADMITTED)
        and request.expires is None
        and request.id not in state.revoked
        and not state.revoked_stamps
        and not request.delivery_info.get("redelivered")
    )
