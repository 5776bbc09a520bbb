"""Limits without Celery: acquire, peek, pause, reset and define, for plain code and for asyncio.

The two ends, ``x()`` and ``ax()``, only carry out the plans of :mod:`celery_throttle.plans`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from celery_throttle.decision import Decision
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.keys import DEFAULT_PREFIX, Keys
from celery_throttle.limits import Limit, check_name
from celery_throttle.plans import Clock, Plan, Plans
from celery_throttle.scope import LimitRef, encode_key
from celery_throttle.scripts import Call
from celery_throttle.store import Store

T = TypeVar("T")

#: A limit as a caller may write it: its name, or its name and key.
Reference = str | tuple[str, Any] | LimitRef


class Limiter:
    """Limits that are kept on one server and shared by everyone who names them.

    Args:
        url: the server; see :class:`celery_throttle.store.Store`.
        limits: name to limit, as text (``"100/s burst 20"``) or :class:`Limit`. These are defaults
            of the code: one defined at run time takes precedence.
        prefix: of all names in Redis. Keep it a hash tag (``{...}``) for Redis Cluster.
        clock: a time of one's own instead of the server's, for tests; it never sleeps.

    Raises:
        LimitError: a definition is wrong.
        ConfigurationError: the URL is of no server that can keep limits.
    """

    def __init__(
        self,
        url: str,
        limits: Mapping[str, str | Limit] | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        self.limits = read_limits(limits or {})
        self.keys = Keys(prefix)
        self.store = Store(url)
        self.clock = clock

    @cached_property
    def plans(self) -> Plans:
        """What the operations do."""
        return Plans(self.limits, self.keys, self.clock)

    def __getitem__(self, item: Reference) -> BoundLimit:
        """One limit, or one key of it: ``limiter["api"]``, ``limiter["mail", "tenant-42"]``."""
        return BoundLimit(self, as_ref(item))

    def acquire(
        self, limits: Iterable[Reference], cost: int = 1, *, max_wait: float | None = None
    ) -> Decision:
        """Take ``cost`` units from every limit, or from none.

        Args:
            limits: names, or pairs of name and key.
            cost: units to take from each, at least 1.
            max_wait: seconds to wait for the limits at most. None (the default) does not wait and
                gives the refusal as a :class:`Decision`.

        Raises:
            Throttled: with ``max_wait``, when the limits do not allow it in that time.
            CostError: the cost is above a limit's burst and could never pass.
            UnknownLimitError: nobody has defined a limit of that name.
            StoreUnavailableError: the server cannot be reached.

        A caller outside tasks cannot join a line: it competes freely with those that wait in one.
        """
        return self.run_plan(self.plans.acquire(as_refs(limits), cost, max_wait))

    async def aacquire(
        self, limits: Iterable[Reference], cost: int = 1, *, max_wait: float | None = None
    ) -> Decision:
        """:meth:`acquire` for asyncio."""
        return await self.arun_plan(self.plans.acquire(as_refs(limits), cost, max_wait))

    def peek(self, limits: Iterable[Reference], cost: int = 1) -> Decision:
        """The decision :meth:`acquire` would give, with nothing taken. The cost may be 0."""
        return self.run_plan(self.plans.peek(as_refs(limits), cost))

    async def apeek(self, limits: Iterable[Reference], cost: int = 1) -> Decision:
        """:meth:`peek` for asyncio."""
        return await self.arun_plan(self.plans.peek(as_refs(limits), cost))

    def define(self, name: str, limit: str | Limit, *, key: Any = None) -> None:
        """Define a limit at run time, for everyone at once, those that wait in lines included.

        It takes precedence over the code's own until :meth:`undefine`. Units in use stay in use:
        a new rate pays them off at its own pace.

        Args:
            name: of the limit.
            limit: text or :class:`Limit`.
            key: only for this key of the limit ("gold tenants"); None is the limit itself.

        Raises:
            LimitError: the definition is wrong.
        """
        self.run_plan(self.plans.define(_keyed(name, key), Limit.of(limit)))

    async def adefine(self, name: str, limit: str | Limit, *, key: Any = None) -> None:
        """:meth:`define` for asyncio."""
        await self.arun_plan(self.plans.define(_keyed(name, key), Limit.of(limit)))

    def undefine(self, name: str, *, key: Any = None) -> None:
        """Take back :meth:`define`: the limit of the code, or of the whole for a key, is back."""
        self.run_plan(self.plans.define(_keyed(name, key), None))

    async def aundefine(self, name: str, *, key: Any = None) -> None:
        """:meth:`undefine` for asyncio."""
        await self.arun_plan(self.plans.define(_keyed(name, key), None))

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


@dataclass(frozen=True, slots=True)
class BoundLimit:
    """One limit, or one key of it, of a limiter. Made by ``limiter[...]``."""

    limiter: Limiter
    ref: LimitRef

    def acquire(self, cost: int = 1, *, max_wait: float | None = None) -> Decision:
        """See :meth:`Limiter.acquire`."""
        return self.limiter.acquire([self.ref], cost, max_wait=max_wait)

    async def aacquire(self, cost: int = 1, *, max_wait: float | None = None) -> Decision:
        """See :meth:`Limiter.acquire`."""
        return await self.limiter.aacquire([self.ref], cost, max_wait=max_wait)

    def peek(self, cost: int = 1) -> Decision:
        """See :meth:`Limiter.peek`."""
        return self.limiter.peek([self.ref], cost)

    async def apeek(self, cost: int = 1) -> Decision:
        """See :meth:`Limiter.peek`."""
        return await self.limiter.apeek([self.ref], cost)

    def pause(self, seconds: float) -> float:
        """Stop the limit (without a key: all its keys) for everyone; never shortens a pause.

        Returns the seconds it is now paused.
        """
        return self.limiter.run_plan(self.limiter.plans.pause(self.ref, seconds))

    async def apause(self, seconds: float) -> float:
        """See :meth:`pause`."""
        return await self.limiter.arun_plan(self.limiter.plans.pause(self.ref, seconds))

    def reset(self) -> None:
        """Forget what was used, and lift the pause. Tasks that wait are looked at again at once."""
        self.limiter.run_plan(self.limiter.plans.reset(self.ref))

    async def areset(self) -> None:
        """See :meth:`reset`."""
        await self.limiter.arun_plan(self.limiter.plans.reset(self.ref))


def read_limits(limits: Mapping[str, str | Limit]) -> dict[str, Limit]:
    """Name to limit, checked."""
    return {check_name(name): Limit.of(limit) for name, limit in limits.items()}


def as_ref(item: Reference) -> LimitRef:
    """A reference as a caller may write it."""
    if isinstance(item, LimitRef):
        return item
    if isinstance(item, tuple):
        if len(item) != len(("name", "key")):
            raise LimitValueError(f"{shown(item)} is no reference: give a name, or name and key")
        name, key = item
        return LimitRef(check_name(name), encode_key(key))
    return LimitRef(check_name(item), None)


def _keyed(name: str, key: Any) -> LimitRef:
    return as_ref(name if key is None else (name, key))


def as_refs(items: Iterable[Reference]) -> list[LimitRef]:
    """References as a caller may write them; a single text is one name, not its letters."""
    refs = [as_ref(items)] if isinstance(items, str) else [as_ref(item) for item in items]
    if not refs:
        raise LimitValueError("no limit was named: give at least one")
    if len(set(refs)) != len(refs):
        raise LimitValueError(f"the same limit and key is named twice in {shown(refs)}")
    return refs
