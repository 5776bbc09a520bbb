"""Limits without Celery: acquire, reserve, slot, pause, resume, define, for all code and asyncio.

The two ends, ``x()`` and ``ax()``, only carry out the plans of ``operations/``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from celery_throttle.forecasts.reader import Outlook
from celery_throttle.forecasts.solver import Forecast
from celery_throttle.handle import BoundLimit
from celery_throttle.lease_renewer import Renewals
from celery_throttle.leases import Reservation, Slot
from celery_throttle.limits.cost import Cost, millionths
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Heard
from celery_throttle.limits.reference import Reference, as_ref, as_refs, is_plain, keyed
from celery_throttle.limits.requirement import Costs, Need, Written, needed, read_limits
from celery_throttle.operations.changes import Clock, Plan, check_wait
from celery_throttle.operations.plans import Holder, Plans, Reserved
from celery_throttle.store.client import Store
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys
from celery_throttle.store.script import Call

T = TypeVar("T")

#: Bound limits, and needs, that are kept.
_KEPT = 1024


class Limiter:
    """Limits that are kept on one server and shared by everyone who names them.

    Args:
        url: the server; see :class:`celery_throttle.store.client.Store`.
        limits: name to limit, as text (``"100/s burst 20"``) or :class:`Limit`, or to a list of
            limits that all have to allow. These are defaults of the code: one defined at run time
            takes precedence.
        prefix: of all names in Redis. Keep it a hash tag (``{...}``) for Redis Cluster.
        timeout: seconds that the server has for each answer. While it does not answer, one call a
            second tries, and all others fail at once.
        clock: a time of one's own instead of the server's, for tests; it never sleeps.

    Raises:
        LimitError: a definition is wrong.
        ConfigurationError: the URL is of no server that can keep limits, or not with this prefix.
    """

    def __init__(
        self,
        url: str,
        limits: Mapping[str, Written] | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self.limits = read_limits(limits or {})
        self.keys = Keys(prefix)
        self.store = Store(url, timeout=timeout, prefix=prefix)
        self.clock = clock

    @cached_property
    def plans(self) -> Plans:
        """What the operations do."""
        return Plans(self.limits, self.keys, self.clock)

    @cached_property
    def outlook(self) -> Outlook:
        """What forecasts do."""
        return Outlook(self.plans.limits, self.keys, self.clock)

    @cached_property
    def renewals(self) -> Renewals:
        """Of the slots that are held."""
        return Renewals(self)

    @cached_property
    def _bound(self) -> dict[str, BoundLimit]:
        return {}

    def __getitem__(self, item: Reference) -> BoundLimit:
        """One limit, or one key of it: ``limiter["api"]``, ``limiter["mail", "tenant-42"]``."""
        if not isinstance(item, str):
            return BoundLimit(self, as_ref(item))
        bound = self._bound.get(item)
        if bound is None:
            if len(self._bound) >= _KEPT:
                self._bound.clear()
            bound = self._bound[item] = BoundLimit(self, as_ref(item))
        return bound

    @cached_property
    def _needs(self) -> dict[tuple[Any, ...], Need]:
        return {}

    def need(self, limits: Iterable[Reference], cost: Costs, *, least: int = 1) -> Need:
        """What a call needs of some limits, checked."""
        kind = type(limits)
        listed = kind is list or kind is tuple
        if type(cost) is not int or not listed or not is_plain(limits):
            return needed(as_refs(limits), cost, least)
        asked = (cost, *limits)
        need = self._needs.get(asked)
        if need is None:
            need = needed(as_refs(limits), cost, least)
            if least:
                if len(self._needs) >= _KEPT:
                    self._needs.clear()
                self._needs[asked] = need
        return need

    def decide(self, need: Need, max_wait: float | None) -> Decision:
        """:meth:`acquire` for what is needed."""
        call = self.plans.ready(need) if max_wait is None else None
        decision = None if call is None else self.plans.told(need, self.store.run(call))
        return self.run_plan(self.taking(need, max_wait)).decision if decision is None else decision

    async def adecide(self, need: Need, max_wait: float | None) -> Decision:
        """:meth:`decide` for asyncio."""
        call = self.plans.ready(need) if max_wait is None else None
        decision = None if call is None else self.plans.told(need, await self.store.arun(call))
        if decision is None:
            decision = (await self.arun_plan(self.taking(need, max_wait))).decision
        return decision

    def taking(
        self,
        need: Need,
        max_wait: float | None,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Reserved]:
        """The plan by which everything is taken that is waited for: units, estimates and slots."""
        return self.plans.acquire(need, max_wait, mode=mode, holder=holder)

    def used(self, taken: Reserved) -> None:
        """What a task was given before, and holds until its end, is not in use any more."""

    def resend(
        self,
        need: Need,  # noqa: ARG002  # who knows of tasks asks
        taken: Reserved | None,  # noqa: ARG002  # likewise
        stop: float,  # noqa: ARG002  # likewise
        most: int,  # noqa: ARG002  # likewise
    ) -> bool:
        """Whether a request that its API refused is waited for here, and sent again.

        Args:
            need: its limits.
            taken: what was taken for it; None while the server of the limits is lost.
            stop: seconds for which the API wants no other.
            most: how often it may be sent again.
        """
        return True

    def acquire(
        self, limits: Iterable[Reference], cost: Costs = 1, *, max_wait: float | None = None
    ) -> Decision:
        """Take ``cost`` units from every limit, or from none.

        Args:
            limits: names, or pairs of name and key; at most 1,000 in one call.
            cost: units to take from each, whole or not; or by the name of the limit, 1 for those
                that are not named.
            max_wait: seconds to wait for the limits at most. None (the default) does not wait and
                gives the refusal as a :class:`Decision`.

        Raises:
            Throttled: with ``max_wait``, when the limits do not allow it in that time.
            CostError: the cost is above a limit's burst and could never pass.
            LimitValueError: a limit is a number of slots; those are for :meth:`slot`.
            UnknownLimitError: nobody has defined a limit of that name.
            StoreUnavailableError: the server cannot be reached.

        A caller outside tasks cannot join a line: it competes freely with those that wait in one.
        """
        return self.decide(self.need(limits, cost), max_wait)

    async def aacquire(
        self, limits: Iterable[Reference], cost: Costs = 1, *, max_wait: float | None = None
    ) -> Decision:
        """:meth:`acquire` for asyncio."""
        return await self.adecide(self.need(limits, cost), max_wait)

    def acquire_up_to(self, limits: Iterable[Reference], most: Cost) -> Decision:
        """Take what there is of every limit, at most ``most`` units, and the same from each.

        ``granted`` of the decision says how much that was: whole units, if ``most`` is whole. The
        decision is a refusal if there was nothing; ``most`` may be above the burst, and 0, of which
        nothing is granted.
        """
        return self.run_plan(self.plans.acquire_up_to(self._need_up_to(limits, most)))

    async def aacquire_up_to(self, limits: Iterable[Reference], most: Cost) -> Decision:
        """:meth:`acquire_up_to` for asyncio."""
        return await self.arun_plan(self.plans.acquire_up_to(self._need_up_to(limits, most)))

    def _need_up_to(self, limits: Iterable[Reference], most: Cost) -> Need:
        millionths(most, allow_zero=True)  # not a cost by name: the same is taken from each
        return self.need(limits, most, least=0)

    def peek(self, limits: Iterable[Reference], cost: Costs = 1) -> Decision:
        """The decision :meth:`acquire` would give, with nothing taken. The cost may be 0."""
        return self.run_plan(self.plans.peek(self.need(limits, cost, least=0)))

    async def apeek(self, limits: Iterable[Reference], cost: Costs = 1) -> Decision:
        """:meth:`peek` for asyncio."""
        return await self.arun_plan(self.plans.peek(self.need(limits, cost, least=0)))

    def reserve(
        self, limits: Iterable[Reference], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """Take an estimate now, and settle it when the cost is known: tokens, bytes.

        Raises:
            Throttled: the limits do not allow it in ``max_wait`` seconds. Others as
                :meth:`acquire`.
        """
        need, wait = self.need(limits, cost), check_wait(max_wait, "max_wait")
        taken = self.run_plan(self.taking(need, wait, mode="reserve"))
        return Reservation(self, taken)

    async def areserve(
        self, limits: Iterable[Reference], cost: Costs, *, max_wait: float = 0.0
    ) -> Reservation:
        """:meth:`reserve` for asyncio."""
        need, wait = self.need(limits, cost), check_wait(max_wait, "max_wait")
        taken = await self.arun_plan(self.taking(need, wait, mode="reserve"))
        return Reservation(self, taken)

    def slot(
        self,
        limits: Iterable[Reference],
        cost: Costs = 1,
        *,
        max_wait: float = 0.0,
        lease: float = 30.0,
    ) -> Slot:
        """A slot of every limit that has slots, held for the time of a ``with`` or ``async with``.

        Limits with a rate among them are taken from as by :meth:`acquire`, all or nothing.

        Args:
            limits: see :meth:`acquire`.
            cost: see there; of slots one is taken, whatever the cost.
            max_wait: seconds to wait for the limits at most.
            lease: seconds after which the slot is free again if this process dies. While it lives,
                the lease is renewed.

        Raises (when the ``with`` begins):
            Throttled: the limits do not allow it in that time. Others as :meth:`acquire`.
        """
        return Slot(self, self.need(limits, cost), max_wait, lease)

    def learn(self, limits: Iterable[Reference], heard: Heard) -> float:
        """Let limits learn from an answer; gives the seconds for which they stop, 0 if they do not.

        That is infinity if one of them is paused until it is resumed. What was refused stops them
        for everyone at once. Where the API says that less is left than is left here, that counts
        from now on. An adaptive limit's rate grows or falls.

        Args:
            limits: that the request passed; see :meth:`acquire`.
            heard: what the answer says.
        """
        return self.run_plan(self.plans.learn(self.need(limits, 0, least=0), heard))

    async def alearn(self, limits: Iterable[Reference], heard: Heard) -> float:
        """:meth:`learn` for asyncio."""
        return await self.arun_plan(self.plans.learn(self.need(limits, 0, least=0), heard))

    def forecast(self, limit: Reference, *, measured: float | None = None) -> Forecast:
        """When the tasks that wait now for a limit will have been started.

        Args:
            limit: its name, for all its keys, or a pair of name and key.
            measured: tasks a second that have been seen to start lately, if somebody knows. It
                counts where limits do not tell: they have slots, or processes are too few.

        Raises:
            UnknownLimitError: nobody has defined a limit of that name.
            LimitValueError: what was measured is no number above 0.
        """
        return self.run_plan(self.outlook.of_limit(as_ref(limit), measured))

    async def aforecast(self, limit: Reference, *, measured: float | None = None) -> Forecast:
        """:meth:`forecast` for asyncio."""
        return await self.arun_plan(self.outlook.of_limit(as_ref(limit), measured))

    def define(
        self,
        name: str,
        limit: Written | None = None,
        *,
        key: Any = None,
        weight: int | None = None,
    ) -> None:
        """Define a limit at run time, for everyone at once, those that wait in lines included.

        It takes precedence over the code's own until :meth:`undefine`. Units in use stay in use:
        by a new rate they are paid off at its own pace, in a new window they count as taken now.

        Args:
            name: of the limit.
            limit: text or :class:`Limit`, or several that all have to allow; None leaves it as it
                is, and only tells the weight.
            key: only for this key of the limit ("gold tenants"); None is the limit itself.
            weight: how many turns a line that needs the limit, or that key of it, has for one of
                other lines, at whichever limit they wait: 1 to 100. A key that was given none has
                that of its name, a name 1. Of several that a line needs the greatest counts. None
                leaves it as it is.

        Raises:
            LimitError: the definition is wrong, or would give slots to a name that has none, or
                take them from one that has.
            UnknownLimitError: a key, or only a weight, of a limit that nobody has defined.
        """
        self.run_plan(self.plans.define(keyed(name, key), limit, weight))

    async def adefine(
        self,
        name: str,
        limit: Written | None = None,
        *,
        key: Any = None,
        weight: int | None = None,
    ) -> None:
        """:meth:`define` for asyncio."""
        await self.arun_plan(self.plans.define(keyed(name, key), limit, weight))

    def undefine(self, name: str, *, key: Any = None) -> None:
        """Take back :meth:`define`: the limit of the code, or of the whole for a key, is back.

        So is the weight.
        """
        self.run_plan(self.plans.undefine(keyed(name, key)))

    async def aundefine(self, name: str, *, key: Any = None) -> None:
        """:meth:`undefine` for asyncio."""
        await self.arun_plan(self.plans.undefine(keyed(name, key)))

    def register(self) -> None:
        """Put the code's own limits in force, save those that were defined at run time."""
        self.run_plan(self.plans.register(self.limits))

    def run_plan(self, plan: Plan[T]) -> T:
        """Carry out a plan, waiting where it says so."""
        answer: Any = None
        while True:
            try:
                step = plan.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            answer = None
            if isinstance(step, Call):
                answer = self.store.run(step)
            elif self.clock is not None:
                self.clock.advance(step.seconds)
            else:
                time.sleep(step.seconds)

    async def arun_plan(self, plan: Plan[T]) -> T:
        """:meth:`run_plan` for asyncio."""
        answer: Any = None
        while True:
            try:
                step = plan.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            answer = None
            if isinstance(step, Call):
                answer = await self.store.arun(step)
            elif self.clock is not None:
                self.clock.advance(step.seconds)
            else:
                await asyncio.sleep(step.seconds)
