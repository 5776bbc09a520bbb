"""Reservations, which are settled later, and slots, which are held under a lease."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from celery_throttle.errors import (
    BlockingWaitError,
    LimitError,
    LimitValueError,
    StoreError,
    Throttled,
    ThrottleError,
)
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.limit import MAX_LEASE_SECONDS
from celery_throttle.limits.requirement import Costs, Requirement, parse_costs
from celery_throttle.operations.acquire import Acquisition, Holder
from celery_throttle.operations.plan import Plan
from celery_throttle.store.steps import Step, Steps, arun_steps, last_step, run_steps

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

logger = logging.getLogger(__name__)


class Reservation:
    """Units that were taken as an estimate. ``reserve()`` returns it; :meth:`settle` ends it.

    It may be used in a ``with``, or as ``async with await limit.areserve(1500) as reservation``. If
    the body raises an error before it has settled the reservation, all units are refunded. The
    units were taken before: the ``with`` takes none.

    If a reservation ends without being settled, its estimate counts, and the first time for each
    limit, a warning is logged. It ends with its ``with``, or when nothing refers to it any more.

    Attributes:
        decision: The :class:`~celery_throttle.Decision` that took the units.

    Example:
        >>> limiter = Limiter("memory://", {"tokens": "40000/day using fixed-window"})
        >>> with limiter["tokens"].reserve(1500) as reservation:
        ...     reservation.settle(1320)
        >>> limiter["tokens"].peek().remaining
        38680
    """

    def __init__(self, limiter: LimiterCore, acquisition: Acquisition) -> None:
        self.decision: Decision = acquisition.decision
        self._limiter = limiter
        self._acquisition: Acquisition | None = acquisition
        self._pid = os.getpid()

    def settle(self, actual: Costs) -> None:
        """Settle the reservation, once, with its actual cost.

        If the actual cost is below the estimate, the part of the difference that is still in use is
        refunded. No window admits more than it would have admitted with the actual cost. If the
        actual cost is above the estimate, the difference is taken now, even above the burst. The
        limit then admits nothing until it has room again.

        Args:
            actual: The actual cost in units, 0 or more. Or a mapping of limit names to units; for a
                limit that it does not contain, the cost is 1.

        Raises:
            CostError: The actual cost is not a number, or below 0. The reservation has not ended.
            ThrottleError: The reservation was settled before, or its ``with`` has ended.
            StoreUnavailableError: The server cannot be reached. The estimate counts.
        """
        self._limiter.run_plan(self._settlement(actual))

    async def asettle(self, actual: Costs) -> None:
        """The asyncio twin of :meth:`settle`."""
        await self._limiter.arun_plan(self._settlement(actual))

    def _settlement(self, actual: Costs) -> Plan[None]:
        acquisition = self._acquisition
        if acquisition is None:
            raise ThrottleError(
                "this reservation has ended: settle() is called once, inside the 'with' if there "
                "is one"
            )
        parse_costs(acquisition.requirement.refs, actual, least=0)  # a wrong cost ends nothing
        self._acquisition = None
        return self._limiter.plans.settle(acquisition, actual)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        run_steps(self._exit(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await arun_steps(self._exit(error))

    def _exit(self, error: BaseException | None) -> Steps[None]:
        if error is None or self._is_of_parent:
            self._end_unsettled()
        elif self._acquisition is not None:
            refund = self._settlement(0)
            with suppress(ThrottleError):  # the error of the body takes precedence
                yield last_step(lambda: self._limiter.plan_steps(refund))

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._end_unsettled()

    @property
    def _is_of_parent(self) -> bool:
        """Whether this process was forked since: the parent uses the units, and settles them."""
        return self._pid != os.getpid()

    def _end_unsettled(self) -> None:
        """Let the estimate count, and warn once for each limit, if nothing has settled it."""
        acquisition, self._acquisition = self._acquisition, None
        if acquisition is None or self._is_of_parent:
            return
        names = {ref.name for ref in acquisition.requirement.refs} - self._limiter.unsettled_names
        if names:
            self._limiter.unsettled_names.update(names)
            logger.warning(
                "A reservation of limit %s was not settled: its estimate counts in full. Call "
                "settle() with the actual cost; later ones are not reported.",
                ", ".join(map(repr, sorted(names))),
            )


def reserve_steps(
    limiter: LimiterCore, requirement: Requirement, max_wait: float
) -> Steps[Acquisition]:
    """Return the steps that take an estimate, or raise Throttled.

    If their caller is interrupted, they give back what the server took.
    """
    interruptions: list[BaseException] = []
    plan, taken = limiter.acquire_plan(requirement, max_wait, mode="reserve"), None
    try:
        taken = yield from limiter.plan_steps(plan, interruptions)
    finally:
        if interruptions:
            if taken is not None:
                refund = limiter.plans.settle(taken, 0)
                with suppress(ThrottleError):
                    yield last_step(lambda: limiter.plan_steps(refund))
            raise interruptions[0]
    return taken


def check_lease(lease: float) -> float:
    """Return the seconds of a lease; LimitValueError unless they are allowed."""
    seconds = check_duration(lease, "a lease")
    if not 1 <= seconds <= MAX_LEASE_SECONDS:
        raise LimitValueError(
            f"a lease of {seconds:g} s is not allowed; allowed: 1 to {MAX_LEASE_SECONDS} s"
        )
    return seconds


class Slot:
    """A slot for the duration of a ``with`` or ``async with``. ``slot()`` returns it.

    The ``with`` takes the slot when it begins, gives the :class:`~celery_throttle.Decision` to
    ``as``, and releases the slot when it ends. Until then, a thread renews the lease. If the server
    cannot be reached for longer than the lease, another holder may take the slot. A slot whose
    ``with`` can never end, as when its event loop was closed, is free when its lease has run out.

    After its release, another ``with`` can take the slot again. While the slot is held, a second
    ``with`` raises :class:`~celery_throttle.ThrottleError`. After a fork inside the ``with``, the
    parent holds the slot: the end of the ``with`` in the child releases nothing.
    """

    def __init__(
        self, limiter: LimiterCore, requirement: Requirement, max_wait: float, lease: float
    ) -> None:
        self._limiter = limiter
        self._requirement = requirement
        self._max_wait = check_duration(max_wait, "max_wait")
        self._lease = check_lease(lease)
        self._holder = ""
        self._pid = 0  # of the process that holds it
        self.acquisition: Acquisition | None = None

    def _acquire(self) -> Plan[Decision]:
        """Take the slot, and start the renewal of its lease."""
        self._pid = os.getpid()
        self._holder = f"{self._pid} {uuid4().hex}"
        holder = Holder(self._holder, self._lease)
        try:
            self.acquisition = yield from self._limiter.acquire_plan(
                self._requirement, self._max_wait, mode="slot", holder=holder
            )
        except (Throttled, LimitError, BlockingWaitError):
            self._holder = ""
            raise
        if self.acquisition.from_server:
            refs = self.acquisition.requirement.refs
            self._limiter.lease_renewer.add(self, self._holder, refs, self._lease)
        return self.acquisition.decision

    def _release(self) -> Plan[None]:
        holder, self._holder = self._holder, ""
        self._limiter.lease_renewer.remove(self)
        acquisition, self.acquisition = self.acquisition, None
        if self._pid != os.getpid():
            return  # after a fork: the parent holds it
        if acquisition is not None:
            self._limiter.return_slots(acquisition)
        if acquisition is None or acquisition.from_server:
            requirement = self._requirement if acquisition is None else acquisition.requirement
            yield from self._limiter.plans.release(requirement.refs, holder)

    def _enter(self) -> Steps[Decision]:
        if self._holder:
            raise ThrottleError("this slot is already held: make one for each 'with'")
        try:
            return (yield from self._limiter.plan_steps(self._acquire()))
        except BaseException:
            # If only the reply was lost, the slot was taken all the same.
            if self._holder:
                with suppress(StoreError):
                    yield from self._exit()
            raise

    def _exit(self) -> Steps[None]:
        yield last_step(lambda: self._limiter.plan_steps(self._release()))

    def __enter__(self) -> Decision:
        return run_steps(self._enter())

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # An error in the body takes precedence; the lease runs out in any case.
        with suppress(StoreError) if error else nullcontext():
            run_steps(self._exit())

    async def __aenter__(self) -> Decision:
        return await arun_steps(self._enter())

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with suppress(StoreError) if error else nullcontext():
            await arun_steps(self._exit())


def enter_step(slot: Slot) -> Step:
    """Return the step that acquires a slot. Its result is the decision."""
    return Step(slot.__enter__, slot.__aenter__)


def exit_step(slot: Slot) -> Step:
    """Return the step that releases a slot."""
    return Step(partial(slot.__exit__, None, None, None), partial(slot.__aexit__, None, None, None))
