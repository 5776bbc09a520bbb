"""BoundLimit: one limit, or one key of it, with everything a limiter can do with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Need, needed

if TYPE_CHECKING:
    from celery_throttle.clients.wrapped import Refused
    from celery_throttle.forecasts.solver import Forecast
    from celery_throttle.leases import Reservation, Slot
    from celery_throttle.limiter import Limiter
    from celery_throttle.limits.decision import Decision
    from celery_throttle.limits.feedback import Heard

F = TypeVar("F", bound=Callable[..., Any])


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

    def wrap(
        self,
        function: F,
        *,
        key: Callable[..., Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[Any], Any] | None = None,
        refused: Refused = (),
        retry_429: int = 0,
    ) -> F:
        """A function, or coroutine function, that asks the limit before each call: for SDKs.

        Args:
            function: calls an API.
            key: a function of the call's arguments that gives the key, if the limit has none here.
            cost: units; or a function of the call's arguments that gives them. Default 1.
            max_wait: seconds that a call waits for the limit at most; default 0.
            usage: a function of the result that gives what it was worth: tokens, bytes. ``cost`` is
                an estimate, then.
            refused: types of exceptions by which the API says that there were too many calls; they
                stop the limit for everyone. Headers are read where SDKs put them: ``Retry-After``
                of ``error.response.headers`` or ``error.headers``. Or a function of an exception
                that gives a :class:`~celery_throttle.limits.feedback.Heard`, or None.
            retry_429: how often the function is called again with the same arguments after such an
                exception: once the limit goes on, and with the units taken anew. Within a task that
                a worker runs, the task steps into its line instead, so often at most in all its
                runs. Default 0.

        Raises (by each call):
            Throttled: the limit does not allow it in time. Within a task that a worker runs, that
                lets the task step into its line.
        """
        # A layer above this one, which most that use limits need not.
        from celery_throttle.clients.wrapped import wrap  # noqa: PLC0415

        return wrap(
            self,
            function,
            key=key,
            cost=cost,
            max_wait=max_wait,
            usage=usage,
            refused=refused,
            retry_429=retry_429,
        )

    def learn(self, heard: Heard) -> float:
        """See :meth:`~celery_throttle.limiter.Limiter.learn`."""
        return self.limiter.learn([self.ref], heard)

    async def alearn(self, heard: Heard) -> float:
        """See :meth:`~celery_throttle.limiter.Limiter.learn`."""
        return await self.limiter.alearn([self.ref], heard)

    def forecast(self, *, measured: float | None = None) -> Forecast:
        """See :meth:`~celery_throttle.limiter.Limiter.forecast`."""
        return self.limiter.forecast(self.ref, measured=measured)

    async def aforecast(self, *, measured: float | None = None) -> Forecast:
        """See :meth:`~celery_throttle.limiter.Limiter.forecast`."""
        return await self.limiter.aforecast(self.ref, measured=measured)

    def pause(self, seconds: float | None) -> float:
        """Stop the limit (without a key: all its keys) for everyone; never shortens a pause.

        Args:
            seconds: for how long; None until :meth:`resume`. Half of a billion seconds and more
                count as None.

        Returns the seconds it is now paused; infinity until it is resumed.
        """
        return self.limiter.run_plan(self.limiter.plans.pause(self.ref, seconds))

    async def apause(self, seconds: float | None) -> float:
        """See :meth:`pause`."""
        return await self.limiter.arun_plan(self.limiter.plans.pause(self.ref, seconds))

    def resume(self) -> bool:
        """Lift the pause, and do nothing else: what was used stays used. Returns if there was one.

        It is the pause of the limit, or that of this key: the one does not lift the other. A pause
        that an answer of an API brought about is lifted as well. Tasks that wait are looked at
        again at once. If the call is cut short, call it again.
        """
        return self.limiter.run_plan(self.limiter.plans.resume(self.ref))

    async def aresume(self) -> bool:
        """See :meth:`resume`."""
        return await self.limiter.arun_plan(self.limiter.plans.resume(self.ref))

    def reset(self) -> None:
        """Forget what was used, and lift the pause. Tasks that wait are looked at again at once.

        Slots in use stay in use.
        """
        self.limiter.run_plan(self.limiter.plans.reset(self.ref))

    async def areset(self) -> None:
        """See :meth:`reset`."""
        await self.limiter.arun_plan(self.limiter.plans.reset(self.ref))


#: One limit, or several that all have to allow.
Bounds = BoundLimit | Sequence[BoundLimit]


def read_bounds(limits: Bounds) -> list[BoundLimit]:
    """What a user gave, checked: at least one, all of one limiter. Raises LimitValueError."""
    several = isinstance(limits, Sequence) and not isinstance(limits, (str, bytes))
    bounds: list[Any] = list(limits) if several else [limits]  # type: ignore[arg-type]  # see above
    if not bounds:
        raise LimitValueError("no limit is given; allowed: one, or a list of them")
    for bound in bounds:
        if not isinstance(bound, BoundLimit):
            raise LimitValueError(
                f"{shown(bound)} is no limit of a limiter; allowed: such as throttle['name'], or a "
                "list of them"
            )
        if bound.limiter is not bounds[0].limiter:
            raise LimitValueError(
                f"{bound.ref.name!r} is of another limiter than {bounds[0].ref.name!r}; allowed: "
                "limits of one"
            )
    return bounds
