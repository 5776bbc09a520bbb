"""What each operation on limits does, written once for code that waits and for asyncio.

A plan is a generator. It yields what it needs from outside, a
:class:`~celery_throttle.scripts.Call` to run on the server or a :class:`Sleep`, and returns the
answer. It neither waits nor talks to a server itself; :mod:`celery_throttle.limiter` does.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from celery_throttle.decision import Decision
from celery_throttle.errors import (
    CostError,
    LimitValueError,
    Throttled,
    UnknownLimitError,
    shown,
)
from celery_throttle.keys import Keys
from celery_throttle.limits import MAX_UNITS, Limit
from celery_throttle.scope import LimitRef
from celery_throttle.scripts import Argument, Call, script

T = TypeVar("T")

MICROSECONDS = 1_000_000

#: Seconds that a wait or a pause may last at most: some thirty years.
_LONGEST = 1e9


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


class Outcome(IntEnum):
    """How ``acquire.lua`` and ``gate.lua`` begin a reply."""

    ALLOWED = 1
    REFUSED = 0
    NEVER = -1
    UNKNOWN = -2


@dataclass(frozen=True, slots=True)
class Want:
    """What a task at a gate needs: its limits, its cost, and how many times that at once."""

    refs: Sequence[LimitRef]
    cost: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class Plans:
    """The operations on the limits of one prefix.

    Attributes:
        limits: those the code defines; registered when the server does not know them.
        keys: the names in Redis.
        clock: a time of the caller's own, or None for the server's.
    """

    limits: Mapping[str, Limit]
    keys: Keys
    clock: Clock | None = None

    def _now(self) -> Argument:
        return "" if self.clock is None else self.clock.now

    def acquire(
        self, refs: Sequence[LimitRef], cost: int, max_wait: float | None
    ) -> Plan[Decision]:
        """Take; with a longest wait in seconds, raise Throttled instead of giving a refusal."""
        left = 0.0 if max_wait is None else check_wait(max_wait, "max_wait")
        check_cost(cost)
        while True:
            decision, bound = yield from self._decide(refs, cost, "take")
            if bound is None or max_wait is None:
                return decision
            wait = decision.retry_after
            if wait is None or wait > left:
                raise Throttled(limit=bound.name, key=bound.key, retry_after=wait)
            began = time.monotonic()
            yield Sleep(wait)
            left -= wait if self.clock else time.monotonic() - began

    def peek(self, refs: Sequence[LimitRef], cost: int) -> Plan[Decision]:
        """Decide, and take nothing."""
        decision, _ = yield from self._decide(refs, check_cost(cost, least=0), "peek")
        return decision

    def _decide(
        self, refs: Sequence[LimitRef], cost: int, mode: str
    ) -> Plan[tuple[Decision, LimitRef | None]]:
        """Give the decision, and the limit that binds: None when it is allowed."""
        outcome, *about = yield from self._ask(refs, cost, mode)
        if outcome == Outcome.ALLOWED:
            wait, bound = 0, None
            remaining, reset, burst = about
        else:
            wait, index, remaining, reset, burst = about
            bound = refs[index - 1]
        decision = Decision(
            allowed=outcome == Outcome.ALLOWED,
            limit=burst,
            remaining=remaining,
            retry_after=wait / MICROSECONDS,
            reset_after=reset / MICROSECONDS,
            bound_by=None if bound is None else bound.name,
        )
        return decision, bound

    def _ask(self, refs: Sequence[LimitRef], cost: int, mode: str) -> Plan[list[int]]:
        """Run ``acquire.lua``; limits the server does not know are registered, and it is repeated.

        Raises as :meth:`check`.
        """
        # What is above any burst may have too many digits to be sent.
        names, args = self._named(refs, min(cost, MAX_UNITS + 1))
        call = Call(script("acquire"), [self.keys.limits, *names], [self._now(), mode, *args])
        reply: list[int] = yield call
        if reply[0] == Outcome.UNKNOWN:
            yield from self.register_missing(refs)
            reply = yield call
        self.check(reply, refs, cost)
        return reply

    def gate_call(self, wants: Sequence[Want], ahead: int) -> Call:
        """The call of ``gate.lua`` for some tasks.

        Args:
            wants: what they need; no limit and key may come twice.
            ahead: how far ahead a start may be booked, in microseconds.
        """
        keys, args = [self.keys.limits], [self._now(), ahead]
        for want in wants:
            names, about = self._named(want.refs, want.cost)
            keys += names
            args += [want.times, len(want.refs), *about]
        return Call(script("gate"), keys, args)

    def _named(self, refs: Sequence[LimitRef], cost: int) -> tuple[list[str], list[Argument]]:
        """Keys and arguments of some limits, as ``decide.lua`` reads them."""
        names: list[str] = []
        args: list[Argument] = []
        for ref in refs:
            names += self.keys.decision(ref)
            args += (ref.name, self.keys.field(ref), cost)
        return names, args

    def check(self, reply: Sequence[int], refs: Sequence[LimitRef], cost: int) -> None:
        """Raise what a reply of ``acquire.lua`` or ``gate.lua`` says is wrong with a call.

        Raises:
            CostError: the cost can never pass.
            UnknownLimitError: neither the server nor the code knows a limit.
        """
        if reply[0] == Outcome.UNKNOWN:
            raise unknown_limit(refs[reply[1] - 1].name, self.limits)
        if reply[0] == Outcome.NEVER:
            raise cost_too_high(cost, refs[reply[1] - 1], reply[2])

    def register_missing(self, refs: Sequence[LimitRef]) -> Plan[None]:
        """Register those of the code's limits that a call needs."""
        names = {ref.name for ref in refs} & set(self.limits)
        return self.register({name: self.limits[name] for name in names})

    def register(self, limits: Mapping[str, Limit]) -> Plan[None]:
        """Put limits of the code in force, save those that were defined at run time."""
        if limits:
            refs = [LimitRef(name, None) for name in limits]
            yield self._define_call("code", refs, [limit.definition() for limit in limits.values()])

    def define(self, ref: LimitRef, limit: Limit | None) -> Plan[None]:
        """Define a limit or one key of it at run time; None takes that back."""
        if limit is not None:
            yield self._define_call("set", [ref], [limit.definition()])
        elif ref.key is None and ref.name in self.limits:
            yield self._define_call("reset", [ref], [self.limits[ref.name].definition()])
        else:
            yield self._define_call("drop", [ref], [""])
        yield from self._touch(ref.name)

    def _define_call(self, origin: str, refs: Sequence[LimitRef], definitions: list[str]) -> Call:
        names = [self.keys.limits, *(self.keys.state(ref) for ref in refs)]
        args = [self._now(), origin]
        for ref, definition in zip(refs, definitions, strict=True):
            args += (ref.name, self.keys.field(ref), definition)
        return Call(script("define"), names, args)

    def _touch(self, name: str) -> Plan[None]:
        """Let what waits at a limit be looked at again, in steps that do not block the server."""
        cursor: Argument = "0"
        while True:
            cursor = yield Call(script("touch"), [self.keys.waits(name)], [self._now(), cursor])
            if cursor == b"0":
                return

    def pause(self, ref: LimitRef, seconds: float) -> Plan[float]:
        """Stop a limit or one key of it; gives the seconds it is now paused."""
        us = to_us(check_wait(seconds, "a pause"))
        paused: int = yield Call(script("pause"), [self.keys.pause(ref)], [self._now(), us])
        return paused / MICROSECONDS

    def reset(self, ref: LimitRef) -> Plan[None]:
        """Forget what was used of a limit or one key of it, and lift its pause."""
        yield Call(script("reset"), [self.keys.state(ref), self.keys.pause(ref)])
        yield from self._touch(ref.name)


def to_us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * MICROSECONDS)


def check_cost(cost: int, least: int = 1) -> int:
    """A cost that is a whole number of units.

    Raises:
        CostError: it is not.
    """
    if isinstance(cost, bool) or not isinstance(cost, int) or cost < least:
        raise CostError(
            f"cost {shown(cost)} is not allowed: a cost is a whole number of at least {least}"
        )
    return cost


def check_wait(seconds: float, what: str) -> float:
    """A wait that is a number of seconds.

    Raises:
        LimitValueError: it is not; ``what`` names it.
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= _LONGEST:
        raise LimitValueError(
            f"{what} of {shown(seconds)} is not allowed: it is seconds, 0 or more"
        )
    return float(seconds)


def cost_too_high(cost: int, ref: LimitRef, burst: int) -> CostError:
    """The error for a cost that can never pass."""
    return CostError(
        f"cost {shown(cost)} can never pass limit {ref.name!r}: "
        f"its burst is {burst}, and a cost must be 1 to {burst}"
    )


def unknown_limit(name: str, known: Iterable[str]) -> UnknownLimitError:
    """The error for a name that nobody has defined."""
    names = ", ".join(repr(one) for one in sorted(known)) or "none"
    return UnknownLimitError(f"limit {shown(name)} is not defined; this process knows: {names}")
