"""Limits without Celery: acquire, reserve, slot, pause, define and forecast, also for asyncio.

An app's ``Throttle`` is a limiter as well.
``x()`` and ``ax()`` execute the same plan of :mod:`celery_throttle.operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from celery_throttle.backend import disabled_backend, make_backend
from celery_throttle.forecasts.solver import Forecast
from celery_throttle.handle import LimitHandle
from celery_throttle.leases import Reservation, Slot
from celery_throttle.limit_changes import LimitChanges
from celery_throttle.limiter_core import CACHE_SIZE
from celery_throttle.limiter_status import LimitsStatus
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Heard
from celery_throttle.limits.reference import RefLike, parse_ref
from celery_throttle.limits.requirement import Costs, LimitsLike, parse_definitions
from celery_throttle.operations.plan import Clock
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys


class Limiter(LimitChanges, LimitsStatus):
    """Limits on one server, shared by all clients that use their names.

    Args:
        url: the server; see :mod:`celery_throttle.store.url`. ``"memory://"``: no server; the
            limits are in the memory of this limiter, with the same decisions. For tests.
        limits: name to limit, as text (``"100/s burst 20"``) or :class:`Limit`, or to a list of
            limits that all have to allow. These are the defaults of the code: a limit that is
            defined at run time takes precedence.
        prefix: the prefix of all keys in Redis. Keep it a hash tag (``{...}``) for Redis Cluster.
        timeout: seconds for connecting and for each reply; default 1. After a timeout one call per
            second tests the server, and all others fail at once.
        clock: a clock that replaces the server's, for tests; with it no call sleeps.
        enabled: False: every request is allowed, no server is called, and a log line says so.

    Raises:
        LimitError: a definition is wrong.
        ConfigurationError: the URL cannot be used, or not with this prefix.
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
        """One limit, or one key of it: ``limiter["api"]``, ``limiter["mail", "tenant-42"]``."""
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

        Args:
            limits: names, or pairs of name and key; at most 1,000 in one call.
            cost: units to take from each limit, whole or not; or a mapping of limit name to units,
                where the default is 1.
            max_wait: seconds to wait for the limits at most. None (the default): do not wait, and
                return a refusal as a :class:`Decision`.

        Raises:
            Throttled: with ``max_wait``, when the limits do not allow it in that time.
            CostError: the cost is above a limit's burst and can never pass.
            LimitValueError: a limit is a number of slots, which :meth:`slot` takes.
            UnknownLimitError: no limit of that name is defined.
            StoreUnavailableError: the server cannot be reached.

        A caller outside tasks cannot join a line: it competes freely with the tasks in lines.
        """
        return self.take(self.require(limits, cost), max_wait)

    async def aacquire(
        self, limits: Iterable[RefLike], cost: Costs = 1, *, max_wait: float | None = None
    ) -> Decision:
        """:meth:`acquire` for asyncio."""
        return await self.atake(self.require(limits, cost), max_wait)

    def acquire_up_to(self, limits: Iterable[RefLike], most: Cost) -> Decision:
        """Take the units that all limits have, at most ``most``, and the same from each.

        ``granted`` of the decision is that number: whole units, if ``most`` is whole. The decision
        is a refusal if no units were available. ``most`` may be above the burst, or 0.
        """
        return self.run_plan(self.plans.acquire_up_to(self.require_up_to(limits, most)))

    async def aacquire_up_to(self, limits: Iterable[RefLike], most: Cost) -> Decision:
        """:meth:`acquire_up_to` for asyncio."""
        return await self.arun_plan(self.plans.acquire_up_to(self.require_up_to(limits, most)))

    def peek(self, limits: Iterable[RefLike], cost: Costs = 1) -> Decision:
        """Return the decision of :meth:`acquire`, and take nothing. The cost may be 0."""
        return self.run_plan(self.plans.peek(self.require(limits, cost, least=0)))

    async def apeek(self, limits: Iterable[RefLike], cost: Costs = 1) -> Decision:
        """:meth:`peek` for asyncio."""
        return await self.arun_plan(self.plans.peek(self.require(limits, cost, least=0)))

    def reserve(
        self, limits: Iterable[RefLike], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """Take an estimated cost now, to be settled when the actual cost (tokens, bytes) is known.

        Raises:
            Throttled: the limits do not allow it in ``max_wait`` seconds. Others as
                :meth:`acquire`.
        """
        plan = self.reserve_plan(self.require(limits, cost), max_wait)
        return Reservation(self, self.run_plan(plan))

    async def areserve(
        self, limits: Iterable[RefLike], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """:meth:`reserve` for asyncio."""
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

        Units of limits with a rate are taken as by :meth:`acquire`, all or nothing. It is for
        ``with`` and ``async with``.

        Args:
            limits: see :meth:`acquire`.
            cost: see :meth:`acquire`; of a limit with slots one slot is taken, whatever the cost.
            max_wait: seconds to wait for the limits at most; default 0.
            lease: seconds after which the slot is free again if this process dies; default 30. The
                lease is renewed while the slot is held.

        Raises (when the ``with`` begins):
            Throttled: the limits do not allow it in that time. Others as :meth:`acquire`.
        """
        return Slot(self, self.require(limits, cost), max_wait, lease)

    def learn(self, limits: Iterable[RefLike], heard: Heard) -> float:
        """Apply the feedback of an answer; return the seconds for which the limits stop, or 0.

        That is infinity if one of them is paused until it is resumed. A refusal stops the limits
        for all clients at once. If the API says that fewer units are left of its quota than of a
        limit, the difference counts as used. The rate of an adaptive limit increases or decreases.

        Args:
            limits: the limits that the request passed; see :meth:`acquire`.
            heard: the feedback.
        """
        return self.run_plan(self.plans.learn(self.require(limits, 0, least=0), heard))

    async def alearn(self, limits: Iterable[RefLike], heard: Heard) -> float:
        """:meth:`learn` for asyncio."""
        return await self.arun_plan(self.plans.learn(self.require(limits, 0, least=0), heard))

    def forecast(self, limit: RefLike, *, measured: float | None = None) -> Forecast:
        """Return when the tasks that wait for a limit now will have been started.

        Args:
            limit: its name, for all its keys, or a pair of name and key.
            measured: tasks per second that started lately, if known. It is used where limits do not
                determine the pace: with slots, or if there are too few processes.

        Raises:
            UnknownLimitError: no limit of that name is defined.
            LimitValueError: ``measured`` is not a number above 0.
        """
        return self.run_plan(self.forecast_reader.of_limit(parse_ref(limit), measured))

    async def aforecast(self, limit: RefLike, *, measured: float | None = None) -> Forecast:
        """:meth:`forecast` for asyncio."""
        return await self.arun_plan(self.forecast_reader.of_limit(parse_ref(limit), measured))
