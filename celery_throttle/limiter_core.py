"""The core of a limiter: requirements, and the execution of plans on its server.

Reservations, slots, handles and the clients of APIs build on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

from celery_throttle.backend import Backend
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.lease_renewer import LeaseRenewer
from celery_throttle.limits.cost import Cost, to_millionths
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.reference import RefLike, are_cacheable, parse_refs
from celery_throttle.limits.requirement import Costs, Requirement, make_requirement
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.acquire import Acquisition, Holder
from celery_throttle.operations.plan import Clock, Plan
from celery_throttle.operations.settle import Plans
from celery_throttle.steps import Step
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Call

T = TypeVar("T")

#: The number of requirements, or handles, that a limiter caches.
CACHE_SIZE = 1024


class LimiterCore:
    """The core of :class:`celery_throttle.Limiter`: what it is made of, and what other parts call.

    :meta private:
    """

    limits: Mapping[str, Limits]  #: of the code, and of the rules file of an app
    keys: Keys
    backend: Backend  #: where the limits are decided
    clock: Clock | None  #: replaces the server's

    @property
    def code_limits(self) -> Mapping[str, Limits]:
        """The limits of the code, without those of a rules file."""
        return self.limits

    @property
    def registered_limits(self) -> Mapping[str, Limits]:
        """The limits that a server gets if it does not know them."""
        return self.limits

    @cached_property
    def store(self) -> Store:
        """The server."""
        return self.backend.store

    @cached_property
    def plans(self) -> Plans:
        """The plans of all operations."""
        return self.backend.plans

    @cached_property
    def observer(self) -> Observer:
        """What the readers of the status use.

        :meta private:
        """
        return self.backend.observer

    @cached_property
    def lease_renewer(self) -> LeaseRenewer:
        """Renews the leases of held slots."""
        return LeaseRenewer(self._renew_lease)

    def _renew_lease(self, holder: str, refs: Sequence[LimitRef], lease: float) -> None:
        self.run_plan(self.plans.renew([(ref, holder) for ref in refs], lease))

    @cached_property
    def _requirements(self) -> dict[tuple[Any, ...], Requirement]:
        return {}

    def require(self, limits: Iterable[RefLike], cost: Costs, *, least: int = 1) -> Requirement:
        """Return the requirement of a call, cached if possible; ``least``: 0 if a cost may be 0."""
        kind = type(limits)
        listed = kind is list or kind is tuple
        if type(cost) is not int or not listed or not are_cacheable(limits):
            return make_requirement(parse_refs(limits), cost, least)
        cache_key = (cost, *limits)
        requirement = self._requirements.get(cache_key)
        if requirement is None:
            requirement = make_requirement(parse_refs(limits), cost, least)
            if least:
                if len(self._requirements) >= CACHE_SIZE:
                    self._requirements.clear()
                self._requirements[cache_key] = requirement
        return requirement

    def require_up_to(self, limits: Iterable[RefLike], most: Cost) -> Requirement:
        """Return the requirement of a call that takes at most ``most`` units, which may be 0."""
        to_millionths(most, allow_zero=True)  # not a cost by name: each limit gives the same
        return self.require(limits, most, least=0)

    def take(self, requirement: Requirement, max_wait: float | None) -> Decision:
        """Take the units of a requirement; see :meth:`~celery_throttle.limiter.Limiter.acquire`.

        Each ``acquire()`` ends here. The fast path does not call :meth:`acquire_plan`.
        """
        call = self.plans.cached_call(requirement) if max_wait is None else None
        if call is not None:
            decision = self.plans.read_decision(requirement, self.store.run(call))
            if decision is not None:
                return decision
        return self.run_plan(self.acquire_plan(requirement, max_wait)).decision

    async def atake(self, requirement: Requirement, max_wait: float | None) -> Decision:
        """:meth:`take` for asyncio."""
        call = self.plans.cached_call(requirement) if max_wait is None else None
        if call is not None:
            decision = self.plans.read_decision(requirement, await self.store.arun(call))
            if decision is not None:
                return decision
        return (await self.arun_plan(self.acquire_plan(requirement, max_wait))).decision

    def acquire_plan(
        self,
        requirement: Requirement,
        max_wait: float | None,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Acquisition]:
        """Return the plan that takes units, estimates and slots, with or without a wait."""
        return self.plans.acquire(requirement, max_wait, mode=mode, holder=holder)

    def reserve_plan(self, requirement: Requirement, max_wait: float) -> Plan[Acquisition]:
        """Return the plan that takes an estimate."""
        longest = check_duration(max_wait, "max_wait")
        return self.acquire_plan(requirement, longest, mode="reserve")

    def return_slots(self, acquisition: Acquisition) -> None:
        """Return slots that a task already held to the task; only tasks have such slots."""

    def may_resend(
        self,
        requirement: Requirement,  # noqa: ARG002  # for tasks only
        acquisition: Acquisition | None,  # noqa: ARG002  # for tasks only
        stop: float,  # noqa: ARG002  # for tasks only
        most: int,  # noqa: ARG002  # for tasks only
    ) -> bool:
        """Whether a request that its API refused may be sent again from here, after a wait.

        The ``acquisition`` is None during an outage of the server. The API asked for no more
        requests for ``stop`` seconds; it may be sent again ``most`` times.
        """
        return True

    def run_plan(self, plan: Plan[T]) -> T:
        """Execute a plan, blocking."""
        result: Any = None
        while True:
            try:
                step = plan.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            result = None
            if isinstance(step, Call):
                result = self.store.run(step)
            elif self.clock is not None:
                self.clock.advance(step.seconds)
            else:
                time.sleep(step.seconds)

    def plan_step(self, plan: Plan[Any]) -> Step:
        """Return the step that runs a plan."""
        return Step(partial(self.run_plan, plan), partial(self.arun_plan, plan))

    async def arun_plan(self, plan: Plan[T]) -> T:
        """:meth:`run_plan` for asyncio."""
        result: Any = None
        while True:
            try:
                step = plan.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            result = None
            if isinstance(step, Call):
                result = await self.store.arun(step)
            elif self.clock is not None:
                self.clock.advance(step.seconds)
            else:
                await asyncio.sleep(step.seconds)


class HandleCore:
    """The limiter and the reference of a :class:`celery_throttle.handle.LimitHandle`.

    :meta private:
    """

    __slots__ = ("limiter", "ref")

    def __init__(self, limiter: LimiterCore, ref: LimitRef) -> None:
        self.limiter = limiter
        self.ref = ref


#: A handle such as ``limiter["stripe"]``, or a sequence of handles of one limiter.
LimitHandles = HandleCore | Sequence[HandleCore]


def check_handles(limits: LimitHandles) -> list[HandleCore]:
    """Return the handles as a list; LimitValueError unless there are some, all of one limiter."""
    several = isinstance(limits, Sequence) and not isinstance(limits, (str, bytes))
    handles: list[Any] = list(limits) if several else [limits]  # type: ignore[arg-type]  # checked below
    if not handles:
        raise LimitValueError("no limit is given; allowed: one, or a list of them")
    for handle in handles:
        if not isinstance(handle, HandleCore):
            raise LimitValueError(
                f"{shown(handle)} is not a limit of a limiter; allowed: such as throttle['name'], "
                "or a list of them"
            )
        if handle.limiter is not handles[0].limiter:
            raise LimitValueError(
                f"{handle.ref.name!r} is of another limiter than {handles[0].ref.name!r}; allowed: "
                "limits of one"
            )
    return handles
