"""Limits without Celery: acquire, peek, pause, reset, define, for plain code and for asyncio.

Every operation is written once, as a generator that yields what it needs from outside: a
:class:`~celery_throttle.scripts.Call` to run on the server or a :class:`Sleep`. The two ends,
``x()`` and ``ax()``, only carry these out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from celery_throttle.decision import Decision
from celery_throttle.errors import (
    CostError,
    LimitValueError,
    Throttled,
    UnknownLimitError,
    shown,
)
from celery_throttle.keys import DEFAULT_PREFIX, Keys
from celery_throttle.limits import Limit, check_name
from celery_throttle.scope import LimitRef, encode_key
from celery_throttle.scripts import Argument, Call, script
from celery_throttle.store import Store

T = TypeVar("T")

#: A limit as a caller may write it: its name, or its name and key.
Reference = str | tuple[str, Any] | LimitRef

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Sleep:
    """What a plan yields to wait; seconds."""

    seconds: float


Plan = Generator[Call | Sleep, Any, T]


class Clock(Protocol):
    """A time of the caller's own; see :class:`celery_throttle.testing.ManualClock`."""

    now: int

    def advance(self, seconds: float) -> None:
        """Move on by some seconds: how a wait passes."""


def to_us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * MICROSECONDS)


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
        self._clock = clock

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
        return self.run_plan(self._acquire(as_refs(limits), cost, max_wait))

    async def aacquire(
        self, limits: Iterable[Reference], cost: int = 1, *, max_wait: float | None = None
    ) -> Decision:
        """:meth:`acquire` for asyncio."""
        return await self._arun(self._acquire(as_refs(limits), cost, max_wait))

    def peek(self, limits: Iterable[Reference], cost: int = 1) -> Decision:
        """The decision :meth:`acquire` would give, with nothing taken. A cost of 0 may be asked."""
        return self.run_plan(self._decide(as_refs(limits), check_cost(cost, least=0), "peek"))

    async def apeek(self, limits: Iterable[Reference], cost: int = 1) -> Decision:
        """:meth:`peek` for asyncio."""
        return await self._arun(self._decide(as_refs(limits), check_cost(cost, least=0), "peek"))

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
        self.run_plan(self._define(name, Limit.of(limit), key))

    async def adefine(self, name: str, limit: str | Limit, *, key: Any = None) -> None:
        """:meth:`define` for asyncio."""
        await self._arun(self._define(name, Limit.of(limit), key))

    def undefine(self, name: str, *, key: Any = None) -> None:
        """Take back :meth:`define`: the limit of the code, or for a key the limit itself, is back."""
        self.run_plan(self._define(name, None, key))

    async def aundefine(self, name: str, *, key: Any = None) -> None:
        """:meth:`undefine` for asyncio."""
        await self._arun(self._define(name, None, key))

    def register(self) -> None:
        """Put the code's own limits in force, save those that were defined at run time."""
        self.run_plan(self._register(self.limits))

    # What follows is the core: plans, which neither wait nor talk to a server themselves.

    def _now(self) -> Argument:
        return "" if self._clock is None else self._clock.now

    def _acquire(self, refs: Sequence[LimitRef], cost: int, max_wait: float | None) -> Plan[Decision]:
        left = 0.0 if max_wait is None else check_wait(max_wait, "max_wait")
        check_cost(cost)
        while True:
            decision = yield from self._decide(refs, cost, "take")
            if decision.allowed or max_wait is None:
                return decision
            wait = decision.retry_after
            if wait is None or wait > left:
                bound = next((ref for ref in refs if ref.name == decision.bound_by), refs[0])
                raise Throttled(
                    retry_after=wait, limit=decision.bound_by or bound.name, key=bound.key
                )
            began = time.monotonic()
            yield Sleep(wait)
            left -= wait if self._clock else time.monotonic() - began

    def _decide(self, refs: Sequence[LimitRef], cost: int, mode: str) -> Plan[Decision]:
        reply = yield from self.ask(refs, cost, mode)
        if reply[0] == 1:
            _, remaining, reset, burst = reply
            return Decision(True, burst, remaining, 0.0, reset / MICROSECONDS, None)
        _, wait, bound, remaining, reset, burst = reply
        return Decision(
            False,
            burst,
            remaining,
            wait / MICROSECONDS,
            reset / MICROSECONDS,
            refs[bound - 1].name,
        )

    def ask(
        self, refs: Sequence[LimitRef], cost: int, mode: str, times: int = 1, ahead: int = 0
    ) -> Plan[list[int]]:
        """Run the decision; limits the server does not know are registered, and it is repeated."""
        call = self._decision_call(refs, cost, mode, times, ahead)
        reply: list[int] = yield call
        if reply[0] == -2:
            yield from self.register_missing(refs)
            reply = yield call
        if reply[0] == -2:
            raise unknown_limit(refs[reply[1] - 1].name, self.limits)
        if reply[0] == -1:
            _, index, burst = reply
            raise CostError(
                f"cost {cost} can never pass limit {refs[index - 1].name!r}: "
                f"its burst is {burst}, and a cost must be 1 to {burst}"
            )
        return reply

    def _decision_call(
        self, refs: Sequence[LimitRef], cost: int, mode: str, times: int, ahead: int
    ) -> Call:
        names = [self.keys.limits]
        args: list[Argument] = [self._now(), mode, times, ahead]
        for ref in refs:
            names += decision_keys(self.keys, ref)
            args += (ref.name, self.keys.field(ref), cost)
        return Call(script("acquire"), names, args)

    def register_missing(self, refs: Sequence[LimitRef]) -> Plan[None]:
        """Register those of the code's limits that a call needs."""
        yield from self._register(
            {ref.name: self.limits[ref.name] for ref in refs if ref.name in self.limits}
        )

    def _register(self, limits: Mapping[str, Limit]) -> Plan[None]:
        if limits:
            args: list[Argument] = ["code"]
            for name, limit in limits.items():
                args += (name, limit.definition())
            yield Call(script("define"), [self.keys.limits], args)

    def _define(self, name: str, limit: Limit | None, key: Any) -> Plan[None]:
        ref = as_ref(name if key is None else (name, key))
        field = self.keys.field(ref)
        args: list[Argument] = (
            ["drop", field, ""] if limit is None else ["set", field, limit.definition()]
        )
        yield Call(script("define"), [self.keys.limits], args)
        if limit is None and name in self.limits:
            yield from self._register({name: self.limits[name]})
        yield from self._touch(name)

    def _touch(self, name: str) -> Plan[None]:
        """Let what waits at a limit be looked at again, in steps that do not block the server."""
        cursor: Argument = "0"
        while True:
            cursor = yield Call(script("touch"), [self.keys.waits(name)], [self._now(), cursor])
            if cursor == b"0":
                return

    def _pause(self, ref: LimitRef, seconds: float) -> Plan[float]:
        us = to_us(check_wait(seconds, "a pause"))
        paused: int = yield Call(script("pause"), [self.keys.pause(ref)], [self._now(), us])
        return paused / MICROSECONDS

    def _reset(self, ref: LimitRef) -> Plan[None]:
        yield Call(script("reset"), [self.keys.state(ref), self.keys.pause(ref)])
        yield from self._touch(ref.name)

    def run_plan(self, plan: Plan[T]) -> T:
        answer: Any = None
        while True:
            try:
                step = plan.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            if isinstance(step, Call):
                answer = self.store.run(step)
            elif self._clock is not None:
                answer = self._clock.advance(step.seconds)
            else:
                answer = time.sleep(step.seconds)

    async def _arun(self, plan: Plan[T]) -> T:
        answer: Any = None
        while True:
            try:
                step = plan.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
            if isinstance(step, Call):
                answer = await self.store.arun(step)
            elif self._clock is not None:
                answer = self._clock.advance(step.seconds)
            else:
                answer = await asyncio.sleep(step.seconds)


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
        return self.limiter.run_plan(self.limiter._pause(self.ref, seconds))

    async def apause(self, seconds: float) -> float:
        """See :meth:`pause`."""
        return await self.limiter._arun(self.limiter._pause(self.ref, seconds))

    def reset(self) -> None:
        """Forget what was used, and lift the pause. Tasks that wait are looked at again at once."""
        self.limiter.run_plan(self.limiter._reset(self.ref))

    async def areset(self) -> None:
        """See :meth:`reset`."""
        await self.limiter._arun(self.limiter._reset(self.ref))


def read_limits(limits: Mapping[str, str | Limit]) -> dict[str, Limit]:
    """Name to limit, checked."""
    return {check_name(name): Limit.of(limit) for name, limit in limits.items()}


def as_ref(item: Reference) -> LimitRef:
    """A reference as a caller may write it."""
    if isinstance(item, LimitRef):
        return item
    if isinstance(item, tuple):
        name, key = item
        return LimitRef(check_name(name), encode_key(key))
    return LimitRef(check_name(item), None)


def as_refs(items: Iterable[Reference]) -> list[LimitRef]:
    """References as a caller may write them; a single text is one name, not its letters."""
    refs = [as_ref(items)] if isinstance(items, str) else [as_ref(item) for item in items]
    if not refs:
        raise LimitValueError("no limit was named: give at least one")
    if len(set(refs)) != len(refs):
        raise LimitValueError(f"the same limit and key is named twice in {shown(refs)}")
    return refs


def check_cost(cost: int, least: int = 1) -> int:
    """A cost that is a whole number of units."""
    if isinstance(cost, bool) or not isinstance(cost, int) or cost < least:
        raise CostError(f"cost {shown(cost)} is not allowed: a cost is a whole number of at least {least}")
    return cost


def check_wait(seconds: float, what: str) -> float:
    """A wait in seconds that is a sensible number."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
        raise LimitValueError(f"{what} of {shown(seconds)} is not allowed: it is seconds, 0 or more")
    return float(seconds)


def decision_keys(keys: Keys, ref: LimitRef) -> tuple[str, str, str, str]:
    """The keys of one limit and key that a decision reads, in the scripts' order."""
    whole = LimitRef(ref.name, None)
    return keys.state(ref), keys.backlog(ref), keys.pause(whole), keys.pause(ref)


def unknown_limit(name: str, known: Iterable[str]) -> UnknownLimitError:
    """The error for a name that nobody has defined."""
    names = ", ".join(repr(one) for one in sorted(known)) or "none"
    return UnknownLimitError(f"limit {shown(name)} is not defined; this process knows: {names}")
