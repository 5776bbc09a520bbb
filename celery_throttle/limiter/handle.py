"""LimitHandle: one limit, or one key of it, with all operations of its limiter."""

from __future__ import annotations

from functools import partial

from celery_throttle.limiter.core import CACHE_SIZE, LimiterCore
from celery_throttle.limiter.leases import Reservation, Slot, reserve_steps
from celery_throttle.limiter.sharded import read_waiting
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import Duration, check_duration
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rate import check_whole
from celery_throttle.limits.requirement import LimitsLike, Requirement, make_requirement
from celery_throttle.observe.forecasts.reader import forecast_limit
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.report import Report, make_report, read_recorded
from celery_throttle.observe.status.limits import read_details
from celery_throttle.observe.status.tasks import WaitingPage
from celery_throttle.observe.values import LimitDetails
from celery_throttle.operations.author import Author
from celery_throttle.store.steps import arun_steps, run_steps


class LimitHandle:
    """One limit, or one key of it. ``limiter[...]`` and ``throttle[...]`` return it.

    Its methods raise :class:`~celery_throttle.UnknownLimitError` if the limit is not defined, and
    :class:`~celery_throttle.StoreUnavailableError` if the server cannot be reached. Limits in
    memory, and disabled limits, have no status: :class:`~celery_throttle.ConfigurationError`.

    Attributes:
        limiter: The limiter, or the ``Throttle``.
        ref: The name of the limit and the encoded key, a
            :class:`~celery_throttle.limits.key.LimitRef`.

    Example:
        >>> limiter = Limiter("memory://", {"mail": "10/m burst 10"})
        >>> tenant = limiter["mail", "tenant-42"]
        >>> tenant.acquire(4).remaining
        6
        >>> tenant.pause(30, reason="bounces")
        30.0
        >>> tenant.try_acquire().allowed
        False
    """

    __slots__ = ("_requirements", "limiter", "ref")

    def __init__(self, limiter: LimiterCore, ref: LimitRef) -> None:
        self.limiter = limiter
        self.ref = ref
        self._requirements: dict[int, Requirement] = {}

    def _require(self, cost: Cost, *, least: int = 1) -> Requirement:
        requirement = self._requirements.get(cost) if type(cost) is int else None
        if requirement is None:
            requirement = make_requirement([self.ref], cost, least)
            if type(cost) is int and 0 < cost < CACHE_SIZE:
                self._requirements[cost] = requirement
        return requirement

    def acquire(self, cost: Cost = 1, *, max_wait: float = 0.0) -> Decision:
        """Take units from the limit, or raise :class:`~celery_throttle.Throttled`.

        Args:
            cost: Units to take, above 0, whole or not; default 1.
            max_wait: The most seconds to wait, 0 to 1e9; default 0.

        Returns:
            The decision, which is always allowed.

        Raises:
            Throttled: The limit does not allow it in that time. If a
                :class:`~celery_throttle.Throttle` raises it in a task that a worker runs, the task
                joins its line.
            CostError: The cost is not a number above 0, or above the burst.
            LimitValueError: The limit has slots, which :meth:`slot` takes; or an argument is out of
                range.
            BlockingWaitError: ``max_wait`` is above 0, and an event loop runs in this thread: use
                :meth:`aacquire`.
        """
        return self.limiter.take(self._require(cost), max_wait)

    async def aacquire(self, cost: Cost = 1, *, max_wait: float = 0.0) -> Decision:
        """The asyncio twin of :meth:`acquire`."""
        return await self.limiter.atake(self._require(cost), max_wait)

    def try_acquire(self, cost: Cost = 1, *, max_wait: float | None = 0.0) -> Decision:
        """Take units from the limit, or none: the decision is false if the limit refuses.

        Args:
            cost: See :meth:`acquire`.
            max_wait: The most seconds to wait, 0 to 1e9; default 0. None: do not wait, but let a
                ``leaky-queue`` take the units for a later start. Then the caller waits for the
                ``delay`` of the decision.

        Raises as :meth:`acquire`, except for a refusal.
        """
        return self.limiter.try_take(self._require(cost), max_wait)

    async def atry_acquire(self, cost: Cost = 1, *, max_wait: float | None = 0.0) -> Decision:
        """The asyncio twin of :meth:`try_acquire`."""
        return await self.limiter.atry_take(self._require(cost), max_wait)

    def acquire_up_to(self, most: Cost) -> Decision:
        """Take as many units as the limit allows, at most ``most``.

        Args:
            most: The most units to take, 0 or more. It may be above the burst.

        Returns:
            The decision. ``granted`` is the number of units taken, which is whole if ``most`` is
            whole. If no units are available, the decision is a refusal.
        """
        return self.limiter.run_plan(self.limiter.acquire_up_to_plan([self.ref], most))

    async def aacquire_up_to(self, most: Cost) -> Decision:
        """The asyncio twin of :meth:`acquire_up_to`."""
        return await self.limiter.arun_plan(self.limiter.acquire_up_to_plan([self.ref], most))

    def peek(self, cost: Cost = 1) -> Decision:
        """Return the decision that :meth:`try_acquire` would return now, and take nothing.

        For a ``leaky-queue``, this is the decision with ``max_wait=None``.

        Args:
            cost: Units, 0 or more; default 1.
        """
        return self.limiter.run_plan(self.limiter.plans.peek(self._require(cost, least=0)))

    async def apeek(self, cost: Cost = 1) -> Decision:
        """The asyncio twin of :meth:`peek`."""
        return await self.limiter.arun_plan(self.limiter.plans.peek(self._require(cost, least=0)))

    def reserve(self, cost: Cost, *, max_wait: float = 0.0) -> Reservation:
        """Take an estimated cost now; settle it when the actual cost (tokens, bytes) is known.

        Args:
            cost: The estimate in units, above 0.
            max_wait: The most seconds to wait, 0 to 1e9; default 0.

        Returns:
            The :class:`~celery_throttle.limiter.leases.Reservation` to settle, alone or in a
            ``with``, which refunds all units if its body raises an error. Raises as
            :meth:`acquire`.
        """
        steps = reserve_steps(self.limiter, self._require(cost), max_wait)
        return Reservation(self.limiter, run_steps(steps))

    async def areserve(self, cost: Cost, *, max_wait: float = 0.0) -> Reservation:
        """The asyncio twin of :meth:`reserve`."""
        steps = reserve_steps(self.limiter, self._require(cost), max_wait)
        return Reservation(self.limiter, await arun_steps(steps))

    def slot(self, cost: Cost = 1, *, max_wait: float = 0.0, lease: float = 30.0) -> Slot:
        """Return a context manager that holds a slot of the limit, for ``with`` or ``async with``.

        Args:
            cost: Units to take from the rates of the limit, if it has rates besides its slots;
                default 1. The call takes one slot, whatever the cost.
            max_wait: The most seconds to wait for the slot, 0 to 1e9; default 0.
            lease: Seconds after which the slot is free again if this process dies, 1 to 3600;
                default 30. A thread renews the lease while the slot is held.

        Returns:
            A :class:`~celery_throttle.limiter.leases.Slot`. The ``with`` takes the slot when it
            begins, and raises as :meth:`acquire`.
        """
        return Slot(self.limiter, self._require(cost), max_wait, lease)

    def learn(self, feedback: Feedback) -> float:
        """Apply the feedback of an API's answer to the limit.

        A refusal or an overload stops the limit for all clients at once. If the API reports that
        its quota has fewer units left than the limit, the difference counts as used. The rate of an
        adaptive limit increases or decreases, except after an overload. So does its number of
        slots, which also decreases after an overload that follows an accepted request.

        Args:
            feedback: The feedback.

        Returns:
            The seconds for which the limit stops; 0.0 if it does not stop. Infinity if it is paused
            until it is resumed.
        """
        return self.limiter.run_plan(self.limiter.learn_plan({self.ref: feedback}))

    async def alearn(self, feedback: Feedback) -> float:
        """The asyncio twin of :meth:`learn`."""
        return await self.limiter.arun_plan(self.limiter.learn_plan({self.ref: feedback}))

    def forecast(self, *, measured: float | None = None) -> Forecast:
        """Return when the tasks that wait for the limit now will have started.

        A handle without a key includes all keys of the limit.

        Args:
            measured: The number of tasks that started per second recently, above 0, if you know it.
                The forecast uses it if the limits do not set the pace: for slots, or if there are
                too few processes.

        Raises:
            LimitValueError: ``measured`` is not a number above 0.
        """
        return self.limiter.read(
            lambda observer: forecast_limit(observer, self.ref, measured), self.ref
        ).complete()

    def status(self) -> LimitDetails:
        """Return details of the limit or key: its definition, usage, waiting tasks and pauses."""
        return self.limiter.read(
            lambda observer: read_details(observer, self.ref), self.ref
        ).merged()

    def list_waiting(self, *, first: int = 0, most: int = 50) -> WaitingPage:
        """Return the tasks that wait at the limit, page by page.

        A handle without a key includes all keys of the limit.

        Args:
            first: The number of tasks to skip: ``next`` of the previous page. Default 0.
            most: The most tasks on a page, 1 or more; default 50.

        Raises:
            LimitValueError: ``first`` or ``most`` is negative or no whole number, or ``most`` is 0.
        """
        check_whole("first", first, least=0)
        check_whole("most", most)
        return read_waiting(self.limiter, self.ref, first, most).complete()

    def report(self, period: Duration = 86_400.0) -> Report:
        """Return a report on the use of the limit and all its keys, with advice.

        Args:
            period: The length of the period until now, 1 second to a week; default a day. Above 15
                minutes, the counts have a resolution of ten minutes.

        Raises:
            LimitValueError: The duration is out of range.
        """
        seconds = check_duration(period, "a period")
        reader = partial(read_recorded, name=self.ref.name, seconds=seconds)
        return make_report(self.limiter.read(reader, self.ref).complete())

    def define(
        self,
        definition: LimitsLike | None = None,
        *,
        weight: int | None = None,
        lasts: Duration | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Define the limit, or the key, at run time, for all clients and lines at once.

        The definition takes precedence over the rules file and the code until :meth:`undefine`.
        Units in use stay in use: a meter drains them at the new rate, and a window counts them as
        taken now.

        Args:
            definition: Text, a :class:`~celery_throttle.Limit`, or a list of these, all of which
                must allow. None (the default): change only the weight.
            weight: The weight of lines that need the limit, or this key, 1 to 100. Workers take
                three times as many tasks from a line of weight 3 as from a line of weight 1. A key
                without its own weight has the weight of its name; the default for a name is 1. If a
                line needs several limits, the greatest weight counts. None (the default): do not
                change the weight.
            lasts: The duration of the definition, 0 to 1e9 seconds, text such as ``"1h30m"``, or a
                ``timedelta``. After that, the rules file or the code decides again. None (the
                default): until :meth:`undefine`.
            reason: The reason, up to 500 characters; recorded with the change.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Raises:
            LimitError: The definition is wrong, or switches between a rate and slots.
            UnknownLimitError: The handle has a key, or only ``weight`` is given, and the limit is
                not defined.

        Example:
            >>> limiter = Limiter("memory://", {"mail": "10/m"})
            >>> limiter["mail", "tenant-42"].define("100/m burst 5", reason="gold plan")
            >>> limiter["mail", "tenant-42"].peek().remaining
            5
        """
        author = Author.of(by, reason)
        plan = self.limiter.plans.define(self.ref, definition, weight, lasts=lasts, author=author)
        self.limiter.run_plan(plan)

    def undefine(self, *, reason: str | None = None, by: str | None = None) -> None:
        """Remove the definition that :meth:`define` made: the rules file or the code decides again.

        It also removes the weight. If neither the rules file nor the code has the limit, the limit
        is no longer defined. A key has the definition of its name again.

        If no call of :meth:`define` is in force, this call removes a limit that only the code of
        other processes defines. If one of these processes needs the limit, the process defines it
        again. Units in use stay in use.

        Args:
            reason: See :meth:`define`.
            by: See :meth:`define`.
        """
        self.limiter.run_plan(self.limiter.plans.undefine(self.ref, Author.of(by, reason)))

    def pause(
        self, lasts: Duration | None, *, reason: str | None = None, by: str | None = None
    ) -> float:
        """Pause the limit for all clients and all waiting tasks.

        A handle without a key also pauses all keys of the limit. A call never shortens a pause that
        is already in force.

        Args:
            lasts: The duration, 0 to 1e9 seconds, text such as ``"10m"``, or a ``timedelta``. None,
                or more than 500 million seconds: until :meth:`resume`.
            reason: The reason, up to 500 characters; shown with the pause.
            by: See :meth:`define`.

        Returns:
            The seconds for which the limit is paused now; infinity until it is resumed.

        Raises:
            LimitValueError: ``lasts`` is out of range, or no duration.
        """
        plan = self.limiter.plans.pause(self.ref, lasts, author=Author.of(by, reason))
        return self.limiter.run_plan(plan)

    def resume(self, *, reason: str | None = None, by: str | None = None) -> bool:
        """Lift the pause, and do nothing else: units in use stay in use.

        The pause of a limit and the pauses of its keys are independent. A stop that an API's answer
        caused is also a pause. Workers check waiting tasks again at once. If the call is
        interrupted, repeat it.

        Args:
            reason: See :meth:`define`.
            by: See :meth:`define`.

        Returns:
            Whether there was a pause.
        """
        return self.limiter.run_plan(self.limiter.plans.resume(self.ref, Author.of(by, reason)))

    def reset(self, *, reason: str | None = None, by: str | None = None) -> None:
        """Clear the units in use, and lift the pause. Workers check waiting tasks again at once.

        It clears the whole state of the algorithms: units in use, windows, and the rate that an
        adaptive limit has learned. A handle without a key clears only the state of the limit
        without a key. Slots in use, definitions, weights, waiting tasks, counters and the log of
        changes stay.

        Args:
            reason: See :meth:`define`.
            by: See :meth:`define`.
        """
        self.limiter.run_plan(self.limiter.plans.reset(self.ref, Author.of(by, reason)))
