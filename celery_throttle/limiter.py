"""Limits without Celery: acquire, reserve, slot, pause, define and forecast, also for asyncio.

The ``Throttle`` of an app is also a limiter. ``x()`` and ``ax()`` execute the same plan of
:mod:`celery_throttle.operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from celery_throttle.backend import disabled_backend, make_backend
from celery_throttle.handle import LimitHandle
from celery_throttle.leases import Reservation, Slot
from celery_throttle.limit_changes import LimitChanges
from celery_throttle.limiter_core import CACHE_SIZE
from celery_throttle.limiter_status import LimitsStatus
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.reference import RefLike, parse_ref
from celery_throttle.limits.requirement import Costs, LimitsLike, parse_definitions
from celery_throttle.observe.forecasts.reader import forecast_limit
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.operations.plan import Clock
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys


class Limiter(LimitChanges, LimitsStatus):
    """Limits on one server, shared by all clients that use their names.

    ``limiter["api"]`` is the limit ``api``, and ``limiter["mail", "tenant-42"]`` is one key of the
    limit ``mail``. Most code uses these handles. The methods of the limiter act on several limits
    at once, or change limits.

    A limiter connects to the server when it is first used.

    Args:
        url: The URL of the server: ``redis://``, ``rediss://``, ``unix://``, ``valkey://``,
            Sentinels, or a cluster; see :doc:`/how-to/servers`. ``"memory://"`` needs no server:
            the limits are in the memory of this limiter, with the same decisions. It is for tests.
        limits: The limits of the code, by name. Each is text (``"100/s burst 20"``), a
            :class:`Limit`, or a list of these, all of which must allow. A definition at run time or
            in the rules file takes precedence. Default: none.
        prefix: The prefix of all keys in Redis. Redis Cluster needs a hash tag (``{...}``) in it.
        timeout: Seconds to connect, and to wait for each reply; default 1. After a timeout, one
            call per second tests the server, and all others fail at once.
        clock: A clock that replaces the server's, for tests: no call sleeps. Default: the server's.
        enabled: False allows every request, calls no server, and logs a warning. Default True.

    Raises:
        LimitError: A definition is wrong.
        ConfigurationError: The URL cannot be used, or cannot be used with this prefix.

    Example:
        >>> limiter = Limiter("memory://", {"api": "10/s burst 2"})
        >>> limiter["api"].acquire(2).allowed
        True
        >>> limiter["api"].acquire().allowed
        False
    """

    def __init__(
        self,
        url: str,
        limits: Mapping[str, LimitsLike] | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 1.0,
        clock: Clock | None = None,
        enabled: bool = True,
    ) -> None:
        self.limits = parse_definitions(limits or {})
        self.keys = Keys(prefix)
        self.clock = clock
        if enabled:
            self.backend = make_backend(url, self.limits, self.keys, timeout=timeout, clock=clock)
        else:
            reason = "the limiter was made with enabled=False"
            self.backend = disabled_backend(self.limits, self.keys, reason)

    @cached_property
    def _handles(self) -> dict[str, LimitHandle]:
        return {}

    def __getitem__(self, item: RefLike) -> LimitHandle:
        """Return the handle of a limit, ``limiter["api"]``, or of one key, ``limiter["mail", 42]``.

        Args:
            item: The name of the limit, or a pair of name and key. A key of several parts is a
                tuple: ``limiter["mail", (42, "eu")]``. The limit need not be defined yet.

        Raises:
            LimitError: The text is not a valid name of a limit.
            KeyValueError: The key has a type that is not allowed.
        """
        if not isinstance(item, str):
            return LimitHandle(self, parse_ref(item))
        handle = self._handles.get(item)
        if handle is None:
            if len(self._handles) >= CACHE_SIZE:
                self._handles.clear()
            handle = self._handles[item] = LimitHandle(self, parse_ref(item))
        return handle

    def acquire(
        self, limits: Iterable[RefLike], cost: Costs = 1, *, max_wait: float | None = None
    ) -> Decision:
        """Take ``cost`` units from every limit, or from none.

        A caller outside tasks cannot join a line: it competes freely with the tasks in lines.

        Args:
            limits: Names, or pairs of name and key; 1 to 1,000, each once.
            cost: Units to take from each limit, above 0, whole or not; default 1. Or a mapping of
                limit names to units; for a limit that it does not contain, the cost is 1.
            max_wait: The most seconds to wait for the limits, 0 to 1e9. None (the default): do not
                wait, and return a refusal as a :class:`Decision`.

        Returns:
            The decision. With ``max_wait``, the request is always allowed.

        Raises:
            Throttled: Only with ``max_wait``: the limits do not allow it in that time. If a
                :class:`Throttle` raises it in a task that a worker runs, the task joins its line.
            CostError: The cost is not a number above 0, or above the burst of a limit.
            LimitValueError: A limit has slots, which :meth:`slot` takes; a limit is given twice; or
                another argument is out of range.
            UnknownLimitError: A limit is not defined.
            StoreUnavailableError: The server cannot be reached.

        Example:
            >>> limiter = Limiter("memory://", {"api": "100/s burst 20", "mail": "10/m"})
            >>> bool(limiter.acquire(["api", ("mail", "tenant-42")]))
            True
        """
        return self.take(self.require(limits, cost), max_wait)

    async def aacquire(
        self, limits: Iterable[RefLike], cost: Costs = 1, *, max_wait: float | None = None
    ) -> Decision:
        """The asyncio twin of :meth:`acquire`."""
        return await self.atake(self.require(limits, cost), max_wait)

    def acquire_up_to(self, limits: Iterable[RefLike], most: Cost) -> Decision:
        """Take as many units as all limits allow, at most ``most``, the same number from each.

        Args:
            limits: See :meth:`acquire`.
            most: The most units to take, 0 or more. It may be above the burst.

        Returns:
            The decision. ``granted`` is the number of units taken, which is whole if ``most`` is
            whole. If no units are available, the decision is a refusal.

        Raises:
            CostError: ``most`` is not a number, or below 0.
            LimitValueError: A limit has slots.
            UnknownLimitError: A limit is not defined.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(self.plans.acquire_up_to(self.require_up_to(limits, most)))

    async def aacquire_up_to(self, limits: Iterable[RefLike], most: Cost) -> Decision:
        """The asyncio twin of :meth:`acquire_up_to`."""
        return await self.arun_plan(self.plans.acquire_up_to(self.require_up_to(limits, most)))

    def peek(self, limits: Iterable[RefLike], cost: Costs = 1) -> Decision:
        """Return the decision that :meth:`acquire` would return now, and take nothing.

        Args:
            limits: See :meth:`acquire`.
            cost: See :meth:`acquire`; it may also be 0.

        Raises:
            CostError: The cost is not a number, below 0, or above the burst of a limit.
            UnknownLimitError: A limit is not defined.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(self.plans.peek(self.require(limits, cost, least=0)))

    async def apeek(self, limits: Iterable[RefLike], cost: Costs = 1) -> Decision:
        """The asyncio twin of :meth:`peek`."""
        return await self.arun_plan(self.plans.peek(self.require(limits, cost, least=0)))

    def reserve(
        self, limits: Iterable[RefLike], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """Take an estimated cost now; settle it when the actual cost (tokens, bytes) is known.

        Args:
            limits: See :meth:`acquire`.
            cost: The estimate; see :meth:`acquire`.
            max_wait: The most seconds to wait for the limits, 0 to 1e9; default 0.

        Returns:
            The :class:`~celery_throttle.leases.Reservation` to settle.

        Raises:
            Throttled: The limits do not allow it in that time.
            CostError: The cost is not a number above 0, or above the burst of a limit.
            LimitValueError: A limit has slots, or an argument is out of range.
            UnknownLimitError: A limit is not defined.
            StoreUnavailableError: The server cannot be reached.

        Example:
            >>> limiter = Limiter("memory://", {"tokens": "40000/day using fixed-window"})
            >>> reservation = limiter.reserve(["tokens"], 1500)
            >>> reservation.settle(1320)
            >>> limiter["tokens"].peek().remaining
            38680
        """
        plan = self.reserve_plan(self.require(limits, cost), max_wait)
        return Reservation(self, self.run_plan(plan))

    async def areserve(
        self, limits: Iterable[RefLike], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """The asyncio twin of :meth:`reserve`."""
        plan = self.reserve_plan(self.require(limits, cost), max_wait)
        return Reservation(self, await self.arun_plan(plan))

    def slot(
        self,
        limits: Iterable[RefLike],
        cost: Costs = 1,
        *,
        max_wait: float = 0.0,
        lease: float = 30.0,
    ) -> Slot:
        """Return a context manager that holds a slot of every limit that has slots.

        From limits with a rate it takes units as :meth:`acquire` does, all or nothing. The result
        works with ``with`` and with ``async with``.

        Args:
            limits: See :meth:`acquire`.
            cost: See :meth:`acquire`. The call takes one slot of each limit with slots, whatever
                the cost.
            max_wait: The most seconds to wait for the limits, 0 to 1e9; default 0.
            lease: Seconds after which a slot is free again if this process dies, 1 to 3600; default
                30. A thread renews the lease while the slot is held.

        Returns:
            The :class:`~celery_throttle.leases.Slot`. The ``with`` takes the slot when it begins.
            If the limits do not allow it in that time, the ``with`` raises :class:`Throttled`. It
            also raises the other errors of :meth:`acquire`.

        Raises:
            LimitValueError: ``max_wait`` or ``lease`` is out of range.

        Example:
            >>> limiter = Limiter("memory://", {"github": "1 at once"})
            >>> with limiter.slot(["github"], max_wait=2.0):
            ...     limiter["github"].peek().allowed
            False
        """
        return Slot(self, self.require(limits, cost), max_wait, lease)

    def learn(self, limits: Iterable[RefLike], feedback: Feedback) -> float:
        """Apply the feedback of an API's answer to limits.

        A refusal stops the limits for all clients at once. If the API reports that its quota has
        fewer units left than a limit, the difference counts as used in the limit. The rate of an
        adaptive limit increases or decreases.

        Args:
            limits: The limits that the request passed; see :meth:`acquire`.
            feedback: The feedback.

        Returns:
            The seconds for which the limits stop: for several limits, the longest stop. 0.0 if none
            of them stops. Infinity if one of them is paused until it is resumed.

        Raises:
            UnknownLimitError: A limit is not defined.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(self.plans.learn(self.require(limits, 0, least=0), feedback))

    async def alearn(self, limits: Iterable[RefLike], feedback: Feedback) -> float:
        """The asyncio twin of :meth:`learn`."""
        return await self.arun_plan(self.plans.learn(self.require(limits, 0, least=0), feedback))

    def forecast(self, limit: RefLike, *, measured: float | None = None) -> Forecast:
        """Return when the tasks that wait for a limit now will have started.

        Args:
            limit: The name of the limit, for all its keys, or a pair of name and key.
            measured: The number of tasks that started per second recently, above 0, if you know it.
                The forecast uses it if the limits do not set the pace: for slots, or if there are
                too few processes.

        Raises:
            UnknownLimitError: The limit is not defined.
            LimitValueError: ``measured`` is not a number above 0.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(forecast_limit(self.observer, parse_ref(limit), measured))

    async def aforecast(self, limit: RefLike, *, measured: float | None = None) -> Forecast:
        """The asyncio twin of :meth:`forecast`."""
        return await self.arun_plan(forecast_limit(self.observer, parse_ref(limit), measured))
