"""The core of a limiter: requirements, and the execution of plans on its server.

Reservations, slots, handles and the clients of APIs build on it, so it is below them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from celery_throttle.errors import BlockingWaitError, Throttled
from celery_throttle.limiter.backend import AnyPlans, Backend
from celery_throttle.limiter.lease_renewer import LeaseRenewer
from celery_throttle.limits.cost import Cost, to_millionths
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import (
    ItemLike,
    LimitRef,
    RefLike,
    parse_item,
    parse_ref,
    parse_refs,
)
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import Costs, Requirement, make_requirement
from celery_throttle.observe.merged import Reading
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.acquire import Acquisition, Holder, Taken
from celery_throttle.operations.plan import (
    Action,
    Blocking,
    Clock,
    Plan,
    StoreCall,
    translate,
)
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Call
from celery_throttle.store.steps import Step, Steps, arun_steps, run_steps

_MAY_BLOCK_LOOP = (
    "this call may wait for its limits, and would block the running event loop; allowed: await its "
    "asyncio twin (aacquire, atry_acquire, areserve, 'async with' for a slot, the asyncio client "
    "of an SDK, is_async=True for wrap), await asyncio.to_thread(...), or no max_wait"
)

T = TypeVar("T")
H = TypeVar("H")

#: The number of requirements, or handles, that a limiter caches.
CACHE_SIZE = 1024


class TaskRun(Protocol):
    """The run of a task in a worker: it has units already, and may step into a line.

    See :mod:`celery_throttle.tasks.context`.
    """

    @property
    def refusal(self) -> Throttled | None:
        """The last error with which the run should step out."""

    def acquire(
        self, requirement: Requirement, max_wait: float, *, mode: str, holder: Holder | None
    ) -> Plan[Acquisition]:
        """Use units that the run has, and take the rest, or step out."""

    def try_acquire(self, requirement: Requirement, max_wait: float | None) -> Plan[Acquisition]:
        """Use units that the run has, and take the rest, or return the refusal."""

    def give_back(self, items: Sequence[Taken]) -> None:
        """Take back slots that the run had."""

    def resend(
        self, requirement: Requirement, taken: Acquisition | None, stop: float, most: int
    ) -> bool:
        """Step out because an API refused a request, or return whether to send it again here."""


def _is_public(member: object) -> bool:
    return ":meta private:" not in (member.__doc__ or "")


class LimiterCore:
    """The core of :class:`celery_throttle.Limiter`: what it is made of, and what other parts call.

    :meta private:
    """

    limits: Mapping[str, Limits]  #: of the code, and of the rules file of an app
    keys: Keys
    backend: Backend  #: where the limits are decided
    clock: Clock | None  #: replaces the server's

    def __dir__(self) -> list[str]:
        """Return the names that users call; other parts of the package call the others."""
        members: dict[str, object] = {}
        for cls in reversed(type(self).__mro__):
            members |= vars(cls) if _is_public(cls) else {}
        return sorted(name for name, value in members.items() if _is_public(value))

    @property
    def code_limits(self) -> Mapping[str, Limits]:
        """The limits of the code, without those of a rules file."""
        return self.limits

    @cached_property
    def store(self) -> Store:
        """The server."""
        return self.backend.store

    @cached_property
    def plans(self) -> AnyPlans:
        """The plans of all operations."""
        return self.backend.plans

    def check_together(self, refs: Iterable[LimitRef]) -> None:
        """Raise ConfigurationError if one call cannot need all of these limits."""

    def read(
        self,
        reader: Callable[[Observer], Plan[T]],
        ref: LimitRef | None = None,  # noqa: ARG002  # a limiter with shards finds that of the limit
    ) -> Reading[T]:
        """Run a plan that reads the status in each shard, or in those that have a limit."""
        return Reading({self.observer.shard: self.run_plan(reader(self.observer))})

    @property
    def observer(self) -> Observer:
        """What the readers of the status use in the home shard.

        :meta private:
        """
        return self.backend.observer

    @property
    def own_broker(self) -> str:
        """The broker of the app's queues, as the names of queues begin; empty without an app."""
        return ""

    def task_name(self, packed: bytes) -> str | None:  # noqa: ARG002  # an app's limiter knows
        """Return the name of the task of a message in a line; None if it is not known."""
        return None

    def task_arguments(self, packed: bytes) -> tuple[str, ...]:  # noqa: ARG002  # as above
        """Return the texts of the arguments of a message in a line; none if they are not known."""
        return ()

    def stored_state(self, task_id: str) -> str | None:  # noqa: ARG002  # as above
        """Return the state of a task in the result backend; None if it has none."""
        return None

    @cached_property
    def lease_renewer(self) -> LeaseRenewer:
        """Renews the leases of held slots."""
        return LeaseRenewer(self._renew_lease)

    def _renew_lease(self, holder: str, refs: Sequence[LimitRef], lease: float) -> None:
        self.run_plan(self.plans.renew([(ref, holder) for ref in refs], lease))

    @cached_property
    def unsettled_names(self) -> set[str]:
        """The names of limits of which a reservation was not settled, and a warning logged."""
        return set()

    @cached_property
    def _requirements(self) -> dict[tuple[Any, ...], Requirement]:
        return {}

    def find_handle(self, item: ItemLike, kind: Callable[[Any, LimitRef], H]) -> H:
        """Return the handle of a name, cached, or of a name and key; ``kind`` makes it."""
        if not isinstance(item, str):
            return kind(self, parse_item(item))
        handle = self._handles.get(item)
        if handle is None:
            if len(self._handles) >= CACHE_SIZE:
                self._handles.clear()
            handle = self._handles[item] = kind(self, parse_item(item))
        return handle

    @cached_property
    def _handles(self) -> dict[str, Any]:
        return {}

    def require(self, limits: Iterable[RefLike], cost: Costs, *, least: int = 1) -> Requirement:
        """Return the requirement of a call, cached if possible; ``least``: 0 if a cost may be 0."""
        if type(limits) is str:
            limits = (limits,)
        if type(cost) is not int or not least or not isinstance(limits, (list, tuple)):
            return make_requirement(parse_refs(limits), cost, least)
        cache_key = (cost, *(item if type(item) is str else parse_ref(item) for item in limits))
        requirement = self._requirements.get(cache_key)
        if requirement is None:
            requirement = make_requirement(parse_refs(limits), cost)
            if len(self._requirements) >= CACHE_SIZE:
                self._requirements.clear()
            self._requirements[cache_key] = requirement
        return requirement

    def current_run(self) -> TaskRun | None:
        """Return the run of a task of the app that makes this call, if it may step out."""
        return None

    def current_task(self) -> tuple[str, str] | None:
        """Return the id and the name of the task of a worker that makes this call."""
        return None

    def learn_plan(self, answers: Mapping[LimitRef, Feedback]) -> Plan[float]:
        """Return the plan that applies what an answer says about each limit."""
        return self.plans.learn(answers, self.current_task())

    def take(self, requirement: Requirement, max_wait: float) -> Decision:
        """Take the units of a requirement, or raise Throttled."""
        return self._take(requirement, max_wait, self.acquire_plan).checked().decision

    async def atake(self, requirement: Requirement, max_wait: float) -> Decision:
        """:meth:`take` for asyncio."""
        return (await self._atake(requirement, max_wait, self.acquire_plan)).checked().decision

    def try_take(self, requirement: Requirement, max_wait: float | None) -> Decision:
        """Take the units of a requirement, or return the refusal."""
        return self._take(requirement, max_wait, self.try_acquire_plan).decision

    async def atry_take(self, requirement: Requirement, max_wait: float | None) -> Decision:
        """:meth:`try_take` for asyncio."""
        return (await self._atake(requirement, max_wait, self.try_acquire_plan)).decision

    def take_step(self, requirement: Requirement, max_wait: float) -> Step:
        """Return the step that takes units; its acquisition may be a refusal to be checked."""
        parts = requirement, max_wait, self.acquire_plan
        return Step(partial(self._take, *parts), partial(self._atake, *parts))

    def _take(
        self,
        requirement: Requirement,
        max_wait: float | None,
        make_plan: Callable[..., Plan[Acquisition]],
    ) -> Acquisition:
        call = self._direct_call(requirement, max_wait)
        taken = None
        if call is not None:
            taken = self.plans.read_acquisition(requirement, self.store.run(call))
        return self.run_plan(make_plan(requirement, max_wait)) if taken is None else taken

    async def _atake(
        self,
        requirement: Requirement,
        max_wait: float | None,
        make_plan: Callable[..., Plan[Acquisition]],
    ) -> Acquisition:
        call = self._direct_call(requirement, max_wait)
        taken = None
        if call is not None:
            taken = self.plans.read_acquisition(requirement, await self.store.arun(call))
        return await self.arun_plan(make_plan(requirement, max_wait)) if taken is None else taken

    def _direct_call(self, requirement: Requirement, max_wait: float | None) -> Call | None:
        """Return the call that takes units without a plan: the hot path."""
        if max_wait != 0 or self.current_run() is not None or self.preparation(requirement):
            return None
        return self.plans.cached_call(requirement)

    def acquire_plan(
        self,
        requirement: Requirement,
        max_wait: float,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Acquisition]:
        """Return the plan that takes units, estimates or slots, or raises Throttled."""
        source = self.current_run() or self.plans
        plan = source.acquire(requirement, max_wait, mode=mode, holder=holder)
        return self._prepared(requirement, plan)

    def try_acquire_plan(
        self, requirement: Requirement, max_wait: float | None
    ) -> Plan[Acquisition]:
        """Return the plan that takes units, or returns the refusal."""
        source = self.current_run() or self.plans
        return self._prepared(requirement, source.try_acquire(requirement, max_wait))

    def acquire_up_to_plan(self, limits: Iterable[RefLike], most: Cost) -> Plan[Decision]:
        """Return the plan that takes the units that there are, 0 to ``most``."""
        to_millionths(most, allow_zero=True)  # not a cost by name: each limit gives the same
        requirement = self.require(limits, most, least=0)
        return self._prepared(requirement, self.plans.acquire_up_to(requirement))

    def preparation(self, requirement: Requirement) -> Callable[[], None] | None:  # noqa: ARG002  # an app's limiter has some
        """Return what must be called before units are taken, and may block; mostly None."""
        return None

    def _prepared(self, requirement: Requirement, plan: Plan[T]) -> Plan[T]:
        prepare = self.preparation(requirement)
        if prepare is not None:
            yield Blocking(prepare)
        return (yield from plan)

    def return_slots(self, acquisition: Acquisition) -> None:
        """Return slots that a task already held to the task; only tasks have such slots."""
        run = self.current_run() if acquisition.task_items else None
        if run is not None:
            run.give_back(acquisition.task_items)

    def may_resend(
        self, requirement: Requirement, acquisition: Acquisition | None, stop: float, most: int
    ) -> bool:
        """Whether a request that its API refused may be sent again from here, after a wait.

        A task in a worker that has sent no other request joins its line instead. The
        ``acquisition`` is None during an outage of the server. The API asked for no more requests
        for ``stop`` seconds; it may be sent again ``most`` times.
        """
        run = self.current_run()
        return run is None or run.resend(requirement, acquisition, stop, most)

    def run_plan(self, plan: Plan[T]) -> T:
        """Execute a plan, blocking.

        Raises:
            BlockingWaitError: the plan may have to wait, and an event loop runs in this thread.
        """
        return run_steps(self.plan_steps(plan))

    async def arun_plan(self, plan: Plan[T]) -> T:
        """:meth:`run_plan` for asyncio."""
        return await arun_steps(self.plan_steps(plan))

    def plan_steps(
        self, plan: Plan[T], interruptions: list[BaseException] | None = None
    ) -> Steps[T]:
        """Return the steps that execute a plan. The error of a step is raised in the plan.

        Given ``interruptions``, calls run to their end, and add to it what has interrupted them.
        """
        return translate(plan, partial(self._step, interruptions=interruptions))

    def _step(self, action: Action, interruptions: list[BaseException] | None = None) -> Step:
        """Return the step of an action; for ``interruptions`` see :meth:`plan_steps`."""
        if isinstance(action, Call):
            action = StoreCall(self.store, action)
        if isinstance(action, StoreCall):
            store, call = action.store, action.call
            args = (call,) if interruptions is None else (call, interruptions.append)
            return Step(partial(store.run, *args), partial(store.arun, *args))
        if interruptions:
            raise interruptions[0]
        if isinstance(action, Blocking):
            return Step(action.function, partial(asyncio.to_thread, action.function))
        seconds = action.seconds
        sleep: Callable[[float], Any] = time.sleep if self.clock is None else self.clock.advance
        asleep: Callable[[float], Any] = asyncio.sleep if self.clock is None else sleep
        return Step(partial(_block, sleep, seconds), partial(asleep, seconds) if seconds else _pass)


def _pass() -> None:
    """Do nothing."""


def _block(sleep: Callable[[float], Any], seconds: float) -> None:
    """Sleep, unless an event loop runs in this thread. A manual clock hides no such mistake."""
    if _is_loop_running():
        raise BlockingWaitError(_MAY_BLOCK_LOOP)
    if seconds:
        sleep(seconds)


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
