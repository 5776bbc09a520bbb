"""The gate: may this task run now? If not, it joins its line and leaves the worker.

Laws at stake here: *never over* (a task passes only with its units taken), *never lost* (an error
leaves the message unacknowledged) and *no surprise* (revoked and expired tasks never reach the
decision, see ``request.py``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle import signals
from celery_throttle.errors import StoreError, ThrottleError
from celery_throttle.task import TaskLimits
from celery_throttle.worker.blocks import HORIZON
from celery_throttle.worker.quota import BATCH, Quota

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.needs import Need
    from celery_throttle.worker.parking import Parking
    from celery_throttle.worker.slots import TaskSlots

logger = get_logger(__name__)

#: Seconds that are waited in place: less than putting the task off would cost.
BRIEF = 0.0003

#: Seconds for which tasks that come fast, but one by one, are gathered.
GATHER = 0.004

#: Seconds of one turn of the worker's loop in which tasks that stepped aside are decided, and until
#: the next: what has ended meanwhile comes first.
TURN = 0.001
NEXT_TURN = 0.0001

#: Seconds after which a task is brought to the gate again while the server cannot be reached.
RETRY = 1.0


class Gate:
    """Decides for the requests of one worker.

    Args:
        throttle: the app's limits.
        parking: where tasks go that may not run now.
        slots: the slots of the tasks that run.
        waiting: requests that wait for a process, the next first.
        has_place: whether one that does not wait could start now.
        bring: brings a request to the gate once more.
        later: calls something after some seconds, with arguments.
    """

    def __init__(
        self,
        throttle: Throttle,
        parking: Parking,
        slots: TaskSlots,
        *,
        waiting: Callable[[], Iterable[Any]],
        has_place: Callable[[], bool],
        bring: Callable[[Any], None],
        later: Callable[[float, Callable[..., None], tuple[Any, ...]], Any],
    ) -> None:
        self._throttle = throttle
        self._slots = slots
        self._parking = parking
        self._bring = bring
        self._later = later
        self._gathered: deque[Any] = deque()
        self._bringing = False
        self._aside: deque[tuple[Any, bool]] = deque()
        self._has_place = has_place
        self._waiting = waiting
        self._quota = Quota(throttle, lambda: chain(self._gathered, waiting()))
        self._reachable = True

    def admit(self, request: Any) -> bool:
        """Whether the request may run now. If not, it is dealt with: parked, failed or put off."""
        if self._slots.holds(request):
            return True
        wait = _taken_before(request)
        if wait is not None:
            return self._start_in(wait, request)
        claim = getattr(request.message, "claim", None)
        if claim is not None:
            if claim.returned:
                state.task_ready(request)
                return False
            claim.started = True
        if claim is not None and claim.admitted:
            self._slots.hold(request, claim.token, claim.slots)
            signals.task_released.send(sender=request.task, request=request, waited=claim.waited)
            return True
        # What comes from a line is no second delivery, whatever its headers say.
        redelivered = claim is None and bool(request.delivery_info.get("redelivered"))
        return self._tried(request, self._decide, redelivered)

    def end(self, request: Any) -> None:
        """A task has ended, in whatever way, or was not started after all."""
        self._slots.end(request)

    def _decide(self, request: Any, redelivered: bool) -> bool:  # noqa: FBT001  # see _tried
        limits = self._throttle.task_limits(request.task)
        if limits is None:
            return True
        need = limits.need_of(request)
        if limits.slots and not self._has_place():
            return self._step_aside(request, redelivered=redelivered)
        # A message that was delivered before may be in a line already: only parking can tell.
        # A slot is taken there, too: it is taken by a task, not by a worker ahead of tasks.
        if not redelivered and not limits.slots:
            wait = self._quota.in_hand(need)
            if wait is None:
                if self._quota.is_better_gathered(need) and self._gather(request):
                    return False
                wait = self._quota.take(need)
                self._is_reachable()
            if wait is not None:
                return self._start_in(wait, request)
        return self._park(request, limits, need, redelivered=redelivered, may_run=True)

    def _park(
        self, request: Any, limits: TaskLimits, need: Need, *, redelivered: bool, may_run: bool
    ) -> bool:
        admitted = self._parking.park(
            request, limits, need, redelivered=redelivered, may_run=may_run
        )
        self._is_reachable()
        if admitted:
            self._quota.is_free(need)
        return admitted

    def _tried(
        self,
        request: Any,
        decide: Callable[[Any, bool], bool],
        redelivered: bool,  # noqa: FBT001  # passed on to what decides, for each task
    ) -> bool:
        try:
            return decide(request, redelivered)
        except StoreError as error:
            self._put_off(request, error)
        except ThrottleError as error:
            self._fail(request, error)
        return False

    def _step_aside(self, request: Any, *, redelivered: bool) -> bool:
        """Decide in another turn of the loop.

        When a process is free, all that waited for it comes here at once, and before anybody is
        told of the end of the task that had it: its slot is for the first in line.
        """
        self._aside.append((request, redelivered))
        if len(self._aside) == 1:
            self._later(0.0, self._decide_aside, ())
        return False

    def _decide_aside(self) -> None:
        till = time.monotonic() + TURN
        try:
            while self._aside and time.monotonic() < till:
                request, redelivered = self._aside.popleft()
                # Celery drops what is reserved when it loses the broker, which delivers it again.
                here = request in state.reserved_requests
                if here and self._tried(request, self._park_aside, redelivered):
                    self._bring(request)
        finally:
            if self._aside:
                self._later(NEXT_TURN, self._decide_aside, ())

    def _park_aside(self, request: Any, redelivered: bool) -> bool:  # noqa: FBT001  # see _tried
        limits = self._throttle.task_limits(request.task)
        if limits is None:
            return True
        need, may_run = limits.need_of(request), self._has_place()
        return self._park(request, limits, need, redelivered=redelivered, may_run=may_run)

    def _gather(self, request: Any) -> bool:
        """Let tasks that come fast, but one by one, come together and ask in one call."""
        if self._bringing or any(self._waiting()):
            return False
        self._gathered.append(request)
        if len(self._gathered) > BATCH:
            self._bring_gathered()
        elif len(self._gathered) == 1:
            self._later(GATHER, self._bring_gathered, ())
        return True

    def _bring_gathered(self) -> None:
        self._bringing = True
        try:
            while self._gathered:
                self._bring(self._gathered.popleft())
        finally:
            self._bringing = False

    def _start_in(self, wait: float, request: Any) -> bool:
        """Its quota is taken, for a slot at most 20 ms away."""
        if wait > BRIEF:
            request.throttle_slot = time.monotonic() + wait
            self._later(wait, self._bring, (request,))
            return False
        if wait > 0:
            time.sleep(wait)
        return True

    def _fail(self, request: Any, error: ThrottleError) -> None:
        """The task fails at once, as if its process had been lost: errbacks, chord and signal."""
        try:
            raise error
        except ThrottleError:
            request.on_failure(ExceptionInfo(), return_ok=False)
        request.acknowledge()

    def _put_off(self, request: Any, error: StoreError) -> None:
        """The message stays unacknowledged, so nothing is lost however long this lasts."""
        if self._reachable:
            self._reachable = False
            logger.error("Tasks with limits are held back: %s", error)
        self._later(RETRY, self._bring, (request,))

    def _is_reachable(self) -> None:
        if not self._reachable:
            self._reachable = True
            logger.warning("The server of the limits is back: tasks with limits run again")


def _taken_before(request: Any) -> float | None:
    """Seconds until the slot that was taken for a request, if it is good still."""
    slot: float | None = request.__dict__.pop("throttle_slot", None)
    if slot is None:
        return None
    now = time.monotonic()
    return max(0.0, slot - now) if now <= slot + HORIZON else None
