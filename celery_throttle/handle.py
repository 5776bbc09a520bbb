"""LimitHandle: one limit, or one key of it, with all operations of its limiter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from celery_throttle.clients.wrapped import Refused, wrap
from celery_throttle.forecasts.solver import Forecast
from celery_throttle.leases import Reservation, Slot
from celery_throttle.limiter_core import HandleCore, LimiterCore
from celery_throttle.limits.author import Author
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Heard
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement, make_requirement
from celery_throttle.observe.report import Report
from celery_throttle.observe.values import LimitDetails

F = TypeVar("F", bound=Callable[..., Any])

#: Whole costs below this are cached: they recur.
_MAX_CACHED_COST = 1000


class LimitHandle(HandleCore):
    """One limit, or one key of it, of a limiter. Made by ``limiter[...]``.

    Attributes:
        limiter: the limiter.
        ref: the name of the limit, and the encoded key.
    """

    __slots__ = ("_requirements",)

    def __init__(self, limiter: LimiterCore, ref: LimitRef) -> None:
        super().__init__(limiter, ref)
        self._requirements: dict[int, Requirement] = {}

    def _require(self, cost: Cost, *, least: int = 1) -> Requirement:
        requirement = self._requirements.get(cost) if type(cost) is int else None
        if requirement is None:
            requirement = make_requirement([self.ref], cost, least)
            if type(cost) is int and 0 < cost < _MAX_CACHED_COST:
                self._requirements[cost] = requirement
        return requirement

    def acquire(self, cost: Cost = 1, *, max_wait: float | None = None) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.acquire`."""
        return self.limiter.take(self._require(cost), max_wait)

    async def aacquire(self, cost: Cost = 1, *, max_wait: float | None = None) -> Decision:
        """:meth:`acquire` for asyncio."""
        return await self.limiter.atake(self._require(cost), max_wait)

    def acquire_up_to(self, most: Cost) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.acquire_up_to`."""
        requirement = self.limiter.require_up_to([self.ref], most)
        return self.limiter.run_plan(self.limiter.plans.acquire_up_to(requirement))

    async def aacquire_up_to(self, most: Cost) -> Decision:
        """:meth:`acquire_up_to` for asyncio."""
        requirement = self.limiter.require_up_to([self.ref], most)
        return await self.limiter.arun_plan(self.limiter.plans.acquire_up_to(requirement))

    def peek(self, cost: Cost = 1) -> Decision:
        """See :meth:`~celery_throttle.limiter.Limiter.peek`."""
        return self.limiter.run_plan(self.limiter.plans.peek(self._require(cost, least=0)))

    async def apeek(self, cost: Cost = 1) -> Decision:
        """:meth:`peek` for asyncio."""
        return await self.limiter.arun_plan(self.limiter.plans.peek(self._require(cost, least=0)))

    def reserve(self, cost: Cost, *, max_wait: float = 0.0) -> Reservation:
        """See :meth:`~celery_throttle.limiter.Limiter.reserve`."""
        plan = self.limiter.reserve_plan(self._require(cost), max_wait)
        return Reservation(self.limiter, self.limiter.run_plan(plan))

    async def areserve(self, cost: Cost, *, max_wait: float = 0.0) -> Reservation:
        """:meth:`reserve` for asyncio."""
        plan = self.limiter.reserve_plan(self._require(cost), max_wait)
        return Reservation(self.limiter, await self.limiter.arun_plan(plan))

    def slot(self, cost: Cost = 1, *, max_wait: float = 0.0, lease: float = 30.0) -> Slot:
        """See :meth:`~celery_throttle.limiter.Limiter.slot`."""
        return Slot(self.limiter, self._require(cost), max_wait, lease)

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
        """Return a function that acquires the limit before each call of ``function``; for SDKs.

        Args:
            function: a function, or coroutine function, that calls an API.
            key: a function of the call's arguments that returns the key, if this handle has none.
            cost: units, or a function of the call's arguments that returns them. Default 1.
            max_wait: seconds that a call waits for the limit at most; default 0.
            usage: a function of the result that returns its actual cost, such as tokens or bytes.
                ``cost`` is then an estimate.
            refused: types of exceptions that mean that the API refused a call; they stop the limit
                for all clients. ``Retry-After`` is read from ``error.response.headers`` or
                ``error.headers``. Or a function of an exception that returns a
                :class:`~celery_throttle.limits.feedback.Heard`, or None.
            retry_429: how many times the function is called again with the same arguments after
                such an exception, after the stop and with units taken anew. Within a task that a
                worker runs, the task joins its line instead, at most this many times in all its
                runs. Default 0.

        Raises (from each call):
            Throttled: the limit does not allow it in time. Within a task that a worker runs, the
                task then joins its line.
        """
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
        return self.limiter.run_plan(self.limiter.plans.learn(self._require(0, least=0), heard))

    async def alearn(self, heard: Heard) -> float:
        """:meth:`learn` for asyncio."""
        requirement = self._require(0, least=0)
        return await self.limiter.arun_plan(self.limiter.plans.learn(requirement, heard))

    def forecast(self, *, measured: float | None = None) -> Forecast:
        """See :meth:`~celery_throttle.limiter.Limiter.forecast`."""
        return self.limiter.run_plan(self.limiter.forecast_reader.of_limit(self.ref, measured))

    async def aforecast(self, *, measured: float | None = None) -> Forecast:
        """:meth:`forecast` for asyncio."""
        plan = self.limiter.forecast_reader.of_limit(self.ref, measured)
        return await self.limiter.arun_plan(plan)

    def status(self) -> LimitDetails:
        """Return all about the limit, or the key: what is in force, used, waiting and paused.

        Raises:
            UnknownLimitError: no limit of that name is defined.
            ConfigurationError: there is no server.
            StoreUnavailableError: the server cannot be reached.
        """
        return self.limiter.run_plan(self.limiter.backend.observer.of_one(self.ref))

    def report(self, seconds: float = 86_400.0) -> Report:
        """Return what was counted of the whole limit in the last seconds, and what to do about it.

        Args:
            seconds: up to a week; default a day. Beyond 15 minutes it is known in steps of ten
                minutes.

        Raises:
            LimitValueError: the time is not between a second and a week. Others as :meth:`status`.
        """
        return self.limiter.run_plan(self.limiter.backend.observer.report(self.ref.name, seconds))

    async def areport(self, seconds: float = 86_400.0) -> Report:
        """:meth:`report` for asyncio."""
        plan = self.limiter.backend.observer.report(self.ref.name, seconds)
        return await self.limiter.arun_plan(plan)

    async def astatus(self) -> LimitDetails:
        """:meth:`status` for asyncio."""
        return await self.limiter.arun_plan(self.limiter.backend.observer.of_one(self.ref))

    def pause(
        self, seconds: float | None, *, reason: str | None = None, by: str | None = None
    ) -> float:
        """Pause the limit (without a key: all its keys) for all clients; never shortens a pause.

        Args:
            seconds: the duration; None: until :meth:`resume`. 500 million seconds and more count
                as None.
            reason: why, in words; shown wherever the pause is.
            by: who; default the user of this process and its host.

        Returns the seconds for which it is paused now; infinity until it is resumed.
        """
        plan = self.limiter.plans.pause(self.ref, seconds, author=Author.of(by, reason))
        return self.limiter.run_plan(plan)

    async def apause(
        self, seconds: float | None, *, reason: str | None = None, by: str | None = None
    ) -> float:
        """:meth:`pause` for asyncio."""
        plan = self.limiter.plans.pause(self.ref, seconds, author=Author.of(by, reason))
        return await self.limiter.arun_plan(plan)

    def resume(self, *, reason: str | None = None, by: str | None = None) -> bool:
        """Lift the pause, and do nothing else: units in use stay in use.

        The pause of a limit and that of a key are independent. A stop from the feedback of an API
        is lifted as well. Waiting tasks are decided again at once. If the call is interrupted, call
        it again.

        Returns whether there was a pause.
        """
        return self.limiter.run_plan(self.limiter.plans.resume(self.ref, Author.of(by, reason)))

    async def aresume(self, *, reason: str | None = None, by: str | None = None) -> bool:
        """:meth:`resume` for asyncio."""
        plan = self.limiter.plans.resume(self.ref, Author.of(by, reason))
        return await self.limiter.arun_plan(plan)

    def reset(self, *, reason: str | None = None, by: str | None = None) -> None:
        """Clear the units in use, and lift the pause. Waiting tasks are decided again at once.

        What it forgets: all that the algorithms know of the limit (units in use, windows, the rate
        that an adaptive limit has learned), for a limit without a key only what is in use without a
        key; and the pause, with its reason. What stays: slots in use, definitions, weights,
        waiting tasks, totals and the log of changes.
        """
        self.limiter.run_plan(self.limiter.plans.reset(self.ref, Author.of(by, reason)))

    async def areset(self, *, reason: str | None = None, by: str | None = None) -> None:
        """:meth:`reset` for asyncio."""
        plan = self.limiter.plans.reset(self.ref, Author.of(by, reason))
        await self.limiter.arun_plan(plan)
