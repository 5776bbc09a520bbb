"""Takes quota for tasks at the gate, with as few round trips as possible.

The call for a task that has a process also takes units for the tasks that will have a process after
it: those that wait for one, and those that come fast, but one by one, which share a round (see
`batching.py`). For a limit that tasks pass many times a second, the call takes a block of units. A
limit that was full a moment ago is not asked again. Units for a task that has no process yet may be
used for 20 ms, so no start is later than that after its admission.

Laws at stake here: *never over* (a unit is used once) and *never idle* (if no task uses a unit in
these 20 ms, and its limit takes more than a second to give another, the unit is given back; see
`refunds.py`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery_throttle.errors import ThrottleError
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import GateRequest, Taken, gate_call
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.replies import ReplyStatus, check_reply
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.batching import run_together
from celery_throttle.worker.admission.refunds import Refunds
from celery_throttle.worker.admission.request_limits import NotComputedError, requirement_of
from celery_throttle.worker.demand import Demand
from celery_throttle.worker.health.loop_calls import LoopCalls, LoopSteps
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import Status, may_be_revoked

#: Microseconds that a start may be booked ahead.
AHEAD = to_us(tuning.BOOKING_HORIZON_SECONDS)

NANOSECONDS = 1_000_000_000

#: The replies of a call of the gate, and their monotonic time.
Reply = tuple[Sequence[Any], float]


@dataclass(slots=True)
class Block:
    """Starts of which one call has taken the units. Each is used once, at its own time or later.

    A block has as many starts as tasks came to the gate in 20 ms recently, and no more than its
    limit gives in one second. Units of starts that are unused when the block ends are lost to the
    limit, unless `start` has them. A change of the limit does not end a block. A block without
    starts is a refusal: as long as it lasts, the limit is not asked again.
    """

    since: float  #: monotonic time of the reply
    starts: int = 0
    at_once: int = 0  #: how many of them may be used at once
    later: float = 0.0  #: seconds from `since` until the first of the others may be used
    interval: float = 0.0  #: seconds from each of the others to the next
    #: Seconds for which the block lasts: less than 20 ms where a window ends.
    lifetime: float = tuning.BOOKING_HORIZON_SECONDS
    #: The only start of a block whose units are given back if they are not used.
    start: Start | None = None
    used: int = 0

    def lasts(self, now: float) -> bool:
        """Return whether this is a refusal that still counts, or starts may still be used."""
        if self.start is not None:
            return not self.used and now <= self.start.until
        return now - self.since <= self.lifetime and (self.used < self.starts or not self.starts)

    def use(self, now: float) -> float | None:
        """Use the next start. Return the seconds until its time; None if there is none."""
        if not self.starts or not self.lasts(now):
            return None
        index = self.used - self.at_once
        self.used += 1
        at = self.since + self.later + index * self.interval
        return max(0.0, at - now) if index >= 0 else 0.0


@dataclass(eq=False, repr=False)
class Quota:
    """Takes and caches the quota of one worker."""

    throttle: AppLimits
    calls: LoopCalls
    refunds: Refunds
    #: Returns the requests that wait for a process, the next first.
    queued: Callable[[], Iterable[Any]]
    #: Returns the limits of a request, if they can be known at once.
    limits_of: Callable[[Any], TaskLimits | None]
    #: Returns whether the limits of all keys of a requirement are in force.
    are_known: Callable[[Requirement], bool]
    #: Held while a gate decides.
    deciding: AbstractContextManager[Any] = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._blocks: dict[Requirement, Block] = {}
        self._demand = Demand()

    def use(self, requirement: Requirement, now: float) -> Start | None:
        """Use quota that is cached at a monotonic time: return a start, or None."""
        block = self._blocks.get(requirement)
        wait = None if block is None else block.use(now)
        if block is None or wait is None:
            return None
        self._demand.count((None, requirement), now)
        if block.start is None:
            return Start(now + wait)
        block.start.move(now + wait)  # its task has the units to give back from now on
        return block.start

    def may_have(self, requirement: Requirement, count: int) -> bool:
        """Return whether one call may take so many starts, as far as is known.

        It takes one at a time of several limits, and of a limit that gives less than a unit a
        second; and none of a limit that was full a moment ago.
        """
        block = self._blocks.get(requirement)
        has_one = len(requirement.refs) > 1 or (block is not None and block.start is not None)
        return (count == 1 or not has_one) and not self.is_refused(requirement)

    def take(
        self, requirement: Requirement, receive: Callable[[Start | Exception | None], None]
    ) -> Start | None:
        """Take quota. Return a start; None if there is none within 20 ms.

        Raises:
            LateReplyError: the reply is late. ``receive`` is called later with what this method
                would have returned or raised.
            StoreError: the server cannot be asked.
            CostError, UnknownLimitError: see :func:`.replies.check_reply`.
        """
        now = time.monotonic()
        if self._has_block(requirement, now):  # or its start would have been used
            return None
        self.refunds.give_back(now)
        wants = [self._want(requirement, now)]
        wants += self._next_wants(requirement.refs, self._queued_requirements(), now)

        def receive_late(result: Reply | Exception) -> None:
            try:
                with self.deciding:
                    start = self.use(requirement, self._receive(wants, result))
            except Exception as error:  # noqa: BLE001  # the request gets it
                receive(error)
            else:
                receive(start)

        replied_at = self._receive(wants, self.calls.run(self._call(wants), receive_late))
        # A start of the reply is used as at its arrival, however late this thread goes on.
        return self.use(requirement, replied_at)

    def fetch(self, requirements: Iterable[Requirement], later: Iterable[Requirement]) -> None:
        """Take quota for tasks that have processes, and cache it, unless enough is cached.

        ``later``: what those require that may have a process soon. See :meth:`may_have`.

        Raises:
            LateReplyError: the reply is late. What it takes is cached later.
            StoreError: the server cannot be asked.
            CostError, UnknownLimitError: of the first; see :func:`.replies.check_reply`.
        """
        now = time.monotonic()
        taken: set[LimitRef] = set()
        wants = []
        for requirement, count in Counter(requirements).items():
            if taken.isdisjoint(requirement.refs) and not self._has_block(requirement, now):
                taken.update(requirement.refs)
                # The last call may have been long ago. Its block served so many tasks in 20 ms.
                last = self._blocks.get(requirement)
                times = count + (last.used if last and len(requirement.refs) == 1 else 0)
                wants.append(GateRequest(requirement, times))
        wants += self._next_wants(taken, later, now)
        if wants:
            self.refunds.give_back(now)
            receive = partial(self._receive, wants, is_ahead=True)
            receive(self.calls.run(self._call(wants), partial(self._receive_ahead, receive)))

    def _receive_ahead(
        self, receive: Callable[[Reply | Exception], float], result: Reply | Exception
    ) -> None:
        with self.deciding, suppress(ThrottleError):  # the tasks are decided once more
            receive(result)

    def forget_refusal(self, requirement: Requirement) -> None:
        """Forget that a limit was full: it had units after all."""
        block = self._blocks.get(requirement)
        if block is not None and not block.starts:
            del self._blocks[requirement]

    def remember_refusal(self, requirement: Requirement) -> None:
        """Remember for a second that a task has joined a line, unless starts are left."""
        now = time.monotonic()
        block = self._blocks.get(requirement)
        if block is None or not block.starts or not block.lasts(now):
            self._add(requirement, Block(now, lifetime=tuning.PARKED_MEMORY_SECONDS), now)

    def is_refused(self, requirement: Requirement) -> bool:
        """Return whether the limit was full a moment ago, or a task has joined a line at it."""
        block = self._blocks.get(requirement)
        return block is not None and not block.starts and block.lasts(time.monotonic())

    def _has_block(self, requirement: Requirement, now: float) -> bool:
        """Return whether there are starts, or the limit was full a moment ago."""
        block = self._blocks.get(requirement)
        return block is not None and block.lasts(now)

    def should_gather(self, requirement: Requirement) -> bool:
        """Return whether tasks come fast, one by one, so that one call should serve several.

        A limit that tasks pass fast needs no gathered tasks: its call takes a block in any case.
        Nor do tasks that wait for a process: one call takes quota for these already.
        """
        now = time.monotonic()
        most, demand = tuning.QUOTA_BATCH_SIZE, self._demand
        is_fast = demand.recent_with(None, now) > most >= demand.recent_with(requirement, now)
        return is_fast and not self._has_block(requirement, now) and not any(self.queued())

    def _call(self, wants: Sequence[GateRequest]) -> LoopSteps[Reply]:
        """Take units for a task that has a process, and for the tasks after it.

        Returns the replies, and their monotonic time.
        """
        plans = self.throttle.plans
        refs = [ref for want in wants for ref in want.requirement.refs]
        plan = call_registered(plans, gate_call(plans, wants, AHEAD), refs)
        (replies,) = yield from run_together(self.throttle, [plan])
        if isinstance(replies, Exception):
            raise replies
        return replies, time.monotonic()

    def _receive(
        self, wants: Sequence[GateRequest], result: Reply | Exception, *, is_ahead: bool = False
    ) -> float:
        """Cache what a call took; return the time of its reply. Raises as :meth:`take`.

        ``is_ahead``: whether no task uses the units of the first at once.
        """
        if isinstance(result, Exception):
            raise result
        replies, replied_at = result
        self._cache(wants, replies, replied_at, 0 if is_ahead else 1)
        requirements = [want.requirement for want in wants]
        check_reply(replies[0], requirements, self.throttle.plans.limits)
        return replied_at

    def _cache(
        self,
        wants: Sequence[GateRequest],
        replies: Sequence[Sequence[Any]],
        now: float,
        first_ahead: int,
    ) -> None:
        """Cache the replies for some wants; the units from an index on may stay unused."""
        # A single reply is for all of them: nothing was taken.
        for index, (want, reply) in enumerate(zip(wants, replies, strict=False)):
            if reply[0] == ReplyStatus.ALLOWED:
                _, starts, at_once, wait_us, interval_ns, lifetime_us, *marks = reply
                later, lifetime = wait_us / MICROSECONDS, lifetime_us / MICROSECONDS
                block = Block(now, starts, at_once, later, interval_ns / NANOSECONDS, lifetime)
                if marks:
                    takes = _takes(want.requirement, *marks)
                    block.start = Start(now + later, takes, lasts=lifetime - later)
                    if index >= first_ahead:
                        self.refunds.watch(block.start)
                self._add(want.requirement, block, now)
            elif reply[0] == ReplyStatus.REFUSED:
                self._add(want.requirement, Block(now), now)

    def _add(self, requirement: Requirement, block: Block, now: float) -> None:
        if len(self._blocks) > tuning.QUOTA_CACHE_SIZE:
            self._blocks = {
                key: one for key, one in self._blocks.items() if one.starts and one.lasts(now)
            }
        self._blocks[requirement] = block

    def _want(self, requirement: Requirement, now: float) -> GateRequest:
        times = self._demand.recent_with(requirement, now) if len(requirement.refs) == 1 else 1
        return GateRequest(requirement, times)

    def _next_wants(
        self, named: Iterable[LimitRef], requirements: Iterable[Requirement], now: float
    ) -> Iterator[GateRequest]:
        """Yield the needs of tasks that will have a process within 20 ms, at their present rate.

        None of them needs a limit and key that the call names already: blocks serve those.
        """
        most = min(tuning.QUOTA_BATCH_SIZE, self._demand.recent_with(None, now) // 2)
        taken = set(named)
        for requirement in requirements:
            if most <= 0:
                return
            if taken.isdisjoint(requirement.refs) and not self._has_block(requirement, now):
                taken.update(requirement.refs)
                most -= 1
                yield self._want(requirement, now)

    def _queued_requirements(self) -> Iterator[Requirement]:
        """Yield what the requests take at the gate that wait for a process, if it is certain."""
        for request in self.queued():
            if not _is_certain(request):
                continue
            try:
                limits = self.limits_of(request)
                if limits is None or limits.slots or limits.settles:
                    continue
                requirement = requirement_of(limits, request)
            except (ThrottleError, NotComputedError):  # it is raised again at the gate
                continue
            if self.are_known(requirement):  # or the task will wait at the gate
                yield requirement


def _takes(requirement: Requirement, marks: Sequence[Sequence[int]]) -> Sequence[Taken]:
    """Return what was taken of each limit."""
    pairs = zip(requirement.refs, requirement.costs, marks, strict=True)
    return [Taken(*ref, cost, some) for ref, cost, some in pairs]


def _is_certain(request: Any) -> bool:
    """Return whether a request will surely take its units: it is not revoked and cannot expire."""
    return (
        hasattr(request, "throttle_state")
        and request.throttle_state.claim is None
        and request.throttle_state.status not in (Status.BOOKED, Status.IN_STRATEGY)
        and not may_be_revoked(request)
        and not request.delivery_info.get("redelivered")
    )
