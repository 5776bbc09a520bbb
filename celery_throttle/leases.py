"""What is taken and not done with: reservations to be settled, slots to be given back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from celery_throttle.errors import (
    LimitError,
    LimitValueError,
    StoreError,
    Throttled,
    ThrottleError,
)
from celery_throttle.limits.limit import LONGEST_LEASE
from celery_throttle.limits.requirement import Costs, Need
from celery_throttle.operations.changes import Plan, check_wait
from celery_throttle.operations.plans import Holder, Reserved

if TYPE_CHECKING:
    from celery_throttle.limiter import Limiter
    from celery_throttle.limits.decision import Decision

T = TypeVar("T")


class Reservation:
    """Units that were taken as an estimate. Made by ``limiter.reserve``.

    Attributes:
        decision: how they were taken.
    """

    def __init__(self, limiter: Limiter, taken: Reserved) -> None:
        self.decision: Decision = taken.decision
        self._limiter = limiter
        self._taken: Reserved | None = taken

    def settle(self, actual: Costs) -> None:
        """Say what it was worth in units (or by the name of the limit), which may be 0. Once.

        Less than was taken is given back: as much as is still in use of it, so that no window
        admits more than if the true cost had been known. More is taken now, beyond the burst if
        need be: the limit admits nothing until that is paid off. Without it, the estimate stands.

        Raises:
            CostError: it is no number, or below 0.
            ThrottleError: it was settled before.
        """
        self._limiter.run_plan(self._limiter.plans.settle(self._once(), actual))

    async def asettle(self, actual: Costs) -> None:
        """:meth:`settle` for asyncio."""
        await self._limiter.arun_plan(self._limiter.plans.settle(self._once(), actual))

    def _once(self) -> Reserved:
        taken, self._taken = self._taken, None
        if taken is None:
            raise ThrottleError("a reservation can be settled once, and this one was")
        return taken


class Slot:
    """A slot for the time of a ``with`` or ``async with``. Made by ``limiter.slot``.

    The lease is renewed by a thread as long as it is held. If the server cannot be reached for
    longer than the lease, somebody else may take the slot meanwhile.
    """

    def __init__(self, limiter: Limiter, need: Need, max_wait: float, lease: float) -> None:
        if not 1 <= check_wait(lease, "a lease") <= LONGEST_LEASE:
            raise LimitValueError(f"a lease of {lease:g} s is not allowed: 1 to {LONGEST_LEASE}")
        self._limiter = limiter
        self._need = need
        self._max_wait = check_wait(max_wait, "max_wait")
        self._lease = lease
        self._holder = ""
        self.taken: Reserved | None = None

    def _plan(self) -> Plan[Decision]:
        """Take it, and have it renewed from then on."""
        self._holder = f"{os.getpid()} {uuid4().hex}"
        holder = Holder(self._holder, self._lease)
        try:
            self.taken = yield from self._limiter.taking(
                self._need, self._max_wait, mode="slot", holder=holder
            )
        except (Throttled, LimitError):
            self._holder = ""
            raise
        if self.taken.asked:
            self._limiter.renewals.add(self._holder, self.taken.need.refs, self._lease)
        return self.taken.decision

    def _release(self) -> Plan[None]:
        holder, self._holder = self._holder, ""
        self._limiter.renewals.remove(holder)
        taken, self.taken = self.taken, None
        if taken is not None:
            self._limiter.used(taken)
        if taken is None or taken.asked:
            need = self._need if taken is None else taken.need
            yield from self._limiter.plans.release(need.refs, holder)

    def _check_free(self) -> None:
        if self._holder:
            raise ThrottleError("a slot is held already: make one for each 'with'")

    def __enter__(self) -> Decision:
        self._check_free()
        try:
            return self._limiter.run_plan(self._plan())
        except BaseException:
            # It may have been taken all the same, if it was the reply that got lost.
            if self._holder:
                with suppress(StoreError):
                    self._limiter.run_plan(self._release())
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # What went wrong inside matters more; the lease runs out in any case.
        with suppress(StoreError) if error else nullcontext():
            self._limiter.run_plan(self._release())

    async def __aenter__(self) -> Decision:
        self._check_free()
        try:
            return await self._limiter.arun_plan(self._plan())
        except BaseException:
            if self._holder:
                with suppress(StoreError):
                    await uncancelled(self._limiter.arun_plan(self._release()))
            raise

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with suppress(StoreError) if error else nullcontext():
            await uncancelled(self._limiter.arun_plan(self._release()))


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Await something to its end, also if the caller is cancelled meanwhile, however often."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:  # noqa: PERF203  # each time another one
            cancelled = error
        except BaseException:
            if not task.done():  # this is being closed, as when its loop ended under it
                raise
            break  # it is the task's, and raised below
    if cancelled is not None:
        raise cancelled
    return task.result()
