"""Takes quota for tasks at the gate, with as few round trips as that allows.

A task that has a process asks for its own units and, in the same call, for those of the tasks that
will have a process after it. When these run short, the next call is sent ahead, and its reply read
when a task needs it. For a limit that is passed many times a second a call takes several units, see
``quota_cache.py``. A limit that was full a moment ago is not asked. What is taken for a task that
has no process yet is good for 20 ms, so no start is later after its admission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_throttle.errors import StoreError, ThrottleError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Need
from celery_throttle.operations.changes import MICROSECONDS, to_us
from celery_throttle.operations.plans import Outcome, Want
from celery_throttle.store.client import Begun
from celery_throttle.worker.admission.quota_cache import HORIZON, Block, Demand
from celery_throttle.worker.admission.requested_limits import limits_of, requirement_of
from celery_throttle.worker.request import GatedRequest
from celery_throttle.worker.task_state import Status, task_state

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.health.backoff import Pace

#: Microseconds that a start may be booked ahead.
AHEAD = to_us(HORIZON)

NANOSECONDS = 1_000_000_000

#: Limits and keys of which blocks, and that they were full, are remembered.
REMEMBERED = 1024

#: Tasks asked for together with one, at most.
BATCH = 7


#: Seconds for the server's last reply above which nothing is asked ahead: it would come too late.
PROMPT = HORIZON / 4


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A call on its way: when it was sent, and for what."""

    since: float
    wants: Sequence[Want]
    begun: Begun


class Quota:
    """What one worker takes.

    Args:
        throttle: the app's limits.
        pace: of calls to the server.
        waiting: requests that wait for a process, the next first.
    """

    def __init__(
        self, throttle: Throttle, pace: Pace, waiting: Callable[[], Iterable[Any]]
    ) -> None:
        self._throttle = throttle
        self._pace = pace
        self._waiting = waiting
        self._blocks: dict[Need, Block] = {}
        self._full: dict[Need, float] = {}
        self._demand = Demand()
        self._ahead: _Ahead | None = None
        self._trip = 0.0

    def in_hand(self, need: Need) -> float | None:
        """Use quota that was taken before: seconds until its slot, or None if there is none."""
        now = time.monotonic()
        self._demand.count(None, now)
        self._demand.count(need, now)
        wait = self._use(need, now)
        if wait is None and self._ahead:
            self._collect(self._ahead)
            wait = self._use(need, time.monotonic())
        if wait is not None and not self._ahead and self._trip < PROMPT:
            held = self._held(need, now)
            if held is None or held.is_short(now):
                self._ask_ahead(self._want(need, now), now)
        return wait

    def is_better_gathered(self, need: Need) -> bool:
        """Whether tasks come fast, so that one call may as well ask for several."""
        now = time.monotonic()
        return self._demand.recent(None, now) > BATCH and self._full.get(need, 0.0) <= now

    def take(self, need: Need) -> float | None:
        """Take quota: seconds until its slot, or None if there is none within 20 ms.

        Raises:
            StoreError: the server cannot be asked.
            CostError, UnknownLimitError: see :meth:`celery_throttle.operations.plans.Plans.check`.
        """
        now = time.monotonic()
        if self._full.get(need, 0.0) > now:
            return None
        self._ask(self._want(need, now), now)
        return self._use(need, time.monotonic())

    def is_free(self, need: Need) -> None:
        """Units were free after all."""
        self._full.pop(need, None)

    def _use(self, need: Need, now: float) -> float | None:
        block = self._held(need, now)
        return block.use(now) if block else None

    def _held(self, need: Need, now: float) -> Block | None:
        """Units in hand that are good still."""
        first = block = self._blocks.get(need)
        while block and not block.left(now):
            block = block.then
        if block and block is not first:
            self._blocks[need] = block
        elif first and not block:
            del self._blocks[need]
        return block

    # Asking.

    def _ask(self, want: Want, now: float) -> None:
        """Ask for a task that has a process, and for those after it."""
        wants = [want, *self._soon(want.need.refs, now)]
        refs = [ref for want in wants for ref in want.need.refs]
        plans, store = self._throttle.plans, self._throttle.store
        call = plans.gate_call(wants, AHEAD)
        try:
            replies = store.run(call)
            if replies[0][0] == Outcome.UNKNOWN:
                self._throttle.run_plan(plans.register_missing(refs, int(replies[0][2])))
                replies = store.run(call)
        finally:
            self._pace.spent(now)
        replied = time.monotonic()
        self._trip = replied - now
        self._keep(wants, replies, replied, 0.0)
        plans.check(replies[0], [want.need for want in wants])

    def _ask_ahead(self, want: Want, now: float) -> None:
        """Ask for tasks to come, without waiting for the reply.

        For more of the same, if they come fast, and for those that wait, if the one after the next
        has no quota yet.
        """
        wants = [want] if want.times > BATCH else []
        near = list(islice(self._waiting(), 2))
        if near and self._want_of(near[-1], now) is not None:
            wants += self._soon([ref for want in wants for ref in want.need.refs], now)
        if wants:
            call = self._throttle.plans.gate_call(wants, AHEAD)
            with suppress(StoreError):  # a task's own call will say it
                self._ahead = _Ahead(now, wants, self._throttle.store.begin(call))

    def _collect(self, ahead: _Ahead) -> None:
        """Read what was asked ahead. What is wrong with it, a task's own call will say."""
        self._ahead = None
        began = time.monotonic()
        try:
            replies = self._throttle.store.finish(ahead.begun)
        except StoreError:
            return
        finally:
            self._pace.spent(began)
        replied = time.monotonic()
        self._trip = replied - began
        self._keep(ahead.wants, replies, ahead.since, replied - ahead.since)

    def _keep(
        self, wants: Sequence[Want], replies: list[list[int]], since: float, later: float
    ) -> None:
        """Keep what was taken. Slots count from ``later`` seconds after ``since``."""
        if len(self._blocks) > REMEMBERED:
            self._blocks = {key: held for key, held in self._blocks.items() if held.left(since)}
        if len(self._full) > REMEMBERED:
            self._full = {full: until for full, until in self._full.items() if until > since}
        for want, reply in zip(wants, replies, strict=False):  # one reply to all: nothing taken
            if reply[0] == Outcome.ALLOWED:
                _, units, at_once, wait, apart_ns, good_us = reply
                first, apart = later + wait / MICROSECONDS, apart_ns / NANOSECONDS
                block = Block(since, units, at_once, first, apart, good_us / MICROSECONDS)
                held = self._blocks.setdefault(want.need, block)
                if held is not block:  # few are left of it, or none
                    held.then = block
            elif reply[0] == Outcome.REFUSED:
                self._full[want.need] = since + HORIZON

    # What to ask for.

    def _want(self, need: Need, now: float) -> Want:
        times = max(1, self._demand.recent(need, now)) if len(need.refs) == 1 else 1
        return Want(need, times)

    def _soon(self, named: Iterable[LimitRef], now: float) -> Iterator[Want]:
        """For tasks that will have a process within 20 ms, as fast as they go now.

        None needs a limit and key that is named already: that is for blocks.
        """
        most = min(BATCH, self._demand.recent(None, now) // 2)
        taken = set(named)
        for request in self._waiting():
            if most <= 0:
                return
            want = self._want_of(request, now)
            if want is not None and taken.isdisjoint(want.need.refs):
                taken.update(want.need.refs)
                most -= 1
                yield want

    def _want_of(self, request: Any, now: float) -> Want | None:
        """What a request will ask for at its turn; None if there is no need, or it is not sure."""
        if not _is_certain(request):
            return None
        try:
            limits = limits_of(self._throttle, request)
            if limits is None or limits.slots:
                return None
            need = requirement_of(limits, request)
        except ThrottleError:  # it is raised again when the task has its turn
            return None
        if self._full.get(need, 0.0) > now or self._held(need, now):
            return None
        return self._want(need, now)


def _is_certain(request: Any) -> bool:
    """Whether a request is sure to ask for its limits at its turn: neither revoked nor expired."""
    return (
        isinstance(request, GatedRequest)
        and task_state(request).claim is None
        and task_state(request).status is not Status.SCHEDULED
        and request.expires is None
        and request.id not in state.revoked
        and not state.revoked_stamps
        and not request.delivery_info.get("redelivered")
    )
