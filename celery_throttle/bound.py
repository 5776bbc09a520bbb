"""BoundLimit: one limit, or one key of it, with everything a limiter can do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.costs import Cost
from celery_throttle.needs import Need, needed
from celery_throttle.scope import LimitRef

if TYPE_CHECKING:
    from celery_throttle.decision import Decision
    from celery_throttle.held import Reservation, Slot
    from celery_throttle.limiter import Limiter


class BoundLimit:
    """One limit, or one key of it, of a limiter. Made by ``limiter[...]``."""

    __slots__ = ("_needs", "limiter", "ref")

    def __init__(self, limiter: Limiter, ref: LimitRef) -> None:
        self.limiter = limiter
        self.ref = ref
        self._needs: dict[int, Need] = {}

    def _need(self, cost: Cost, *, least: int = 1) -> Need:
        # The whole costs of below a thousand units are the ones that come again and again.
        need = self._needs.get(cost) if type(cost) is int else None
        if need is None:
            need = needed([self.ref], cost, least)
            if type(cost) is int and 0 < cost < 1000:  # noqa: PLR2004  # see above
                self._needs[cost] = need
        return need

    def acquire(self, cost: Cost = 1, *, max_wait: float | None = None) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.acquire`."""
        return self.limiter.decide(self._need(cost), max_wait)

    async def aacquire(self, cost: Cost = 1, *, max_wait: float | None = None) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.acquire`."""
        return await self.limiter.adecide(self._need(cost), max_wait)

    def acquire_up_to(self, most: Cost) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.acquire_up_to`."""
        return self.limiter.acquire_up_to([self.ref], most)

    async def aacquire_up_to(self, most: Cost) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.acquire_up_to`."""
        return await self.limiter.aacquire_up_to([self.ref], most)

    def peek(self, cost: Cost = 1) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.peek`."""
        return self.limiter.peek([self.ref], cost)

    async def apeek(self, cost: Cost = 1) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.peek`."""
        return await self.limiter.apeek([self.ref], cost)

    def reserve(self, cost: Cost, *, max_wait: float = 0.0) -> Reservation:
        """See :meth:`~celery_throttle.limiter.Limiter.reserve`."""
        return self.limiter.reserve([self.ref], cost, max_wait=max_wait)

    async def areserve(self, cost: Cost, *, max_wait: float = 0.0) -> Reservation:
        """See :meth:`~celery_throttle.limiter.Limiter.reserve`."""
        return await self.limiter.areserve([self.ref], cost, max_wait=max_wait)

    def slot(self, cost: Cost = 1, *, max_wait: float = 0.0, lease: float = 30.0) -> Slot:
        """See :meth:`~celery_throttle.limiter.Limiter.slot`."""
        return self.limiter.slot([self.ref], cost, max_wait=max_wait, lease=lease)

    def pause(self, seconds: float) -> float:
        """Stop the limit (without a key: all its keys) for everyone; never shortens a pause.

        Returns the seconds it is now paused.
        """
        return self.limiter.run_plan(self.limiter.plans.pause(self.ref, seconds))

    async def apause(self, seconds: float) -> float:
        """See :meth:`pause`."""
        return await self.limiter.arun_plan(self.limiter.plans.pause(self.ref, seconds))

    def reset(self) -> None:
        """Forget what was used, and lift the pause. Tasks that wait are looked at again at once.

        Slots in use stay in use.
        """
        self.limiter.run_plan(self.limiter.plans.reset(self.ref))

    async def areset(self) -> None:
        """See :meth:`reset`."""
        await self.limiter.arun_plan(self.limiter.plans.reset(self.ref))
