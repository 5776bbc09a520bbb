"""What each operation on limits does, written once for code that waits and for asyncio.

A plan is a generator. It yields what it needs from outside, a
:class:`~celery_throttle.scripts.Call` to run on the server or a
:class:`~celery_throttle.changes.Sleep`, and returns the answer. It neither waits nor talks to a
server itself; :mod:`celery_throttle.limiter` does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from celery_throttle.changes import (
    MICROSECONDS,
    Changes,
    Plan,
    Sleep,
    check_wait,
    to_us,
    unknown_limit,
)
from celery_throttle.costs import MILLION, in_units
from celery_throttle.decision import Decision
from celery_throttle.errors import CostError, LimitValueError, Throttled, shown
from celery_throttle.needs import Costs, Need, costs_of, written_name
from celery_throttle.rates import MAX_UNITS
from celery_throttle.scope import LimitRef
from celery_throttle.scripts import Argument, Call, script

#: Calls that are kept to be sent again.
_KEPT = 1024

#: Seconds between two looks for a slot, which may be given back at any time.
_LOOK = 0.02


class Outcome(IntEnum):
    """How ``acquire.lua`` and ``gate.lua`` begin a reply."""

    ALLOWED = 1
    REFUSED = 0
    NEVER = -1
    UNKNOWN = -2
    SLOTS = -3


class Holder(NamedTuple):
    """Who takes slots: a name of its own, and seconds that the lease lasts at first."""

    name: str
    lease: float


@dataclass(frozen=True, slots=True)
class Want:
    """What a task at a gate needs, and how many times that at once."""

    need: Need
    times: int = 1


class Reserved(NamedTuple):
    """What was reserved: of each limit the definition's time and the mark of what was taken."""

    need: Need
    decision: Decision
    marks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Plans(Changes):
    """The operations on the limits of one prefix."""

    _calls: dict[tuple[Need, str], Call] = field(default_factory=dict, init=False, repr=False)

    def acquire(
        self,
        need: Need,
        max_wait: float | None,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Reserved]:
        """Take; with a longest wait in seconds, raise Throttled instead of giving a refusal."""
        left = 0.0 if max_wait is None else check_wait(max_wait, "max_wait")
        while True:
            longest = None if max_wait is None else left
            reply = yield from self._ask(need, mode, holder, longest)
            if reply[0] == Outcome.ALLOWED:
                taken = _allowed(need, reply, mode)
                if max_wait is not None and taken.decision.delay > 0:
                    yield Sleep(taken.decision.delay)
                return taken
            bound, decision = _refused(need, reply)
            if max_wait is None:
                return Reserved(need, decision, ())
            slots_bind = bool(reply[6])
            wait = decision.retry_after or 0.0
            if left <= 0 or (wait > left and not slots_bind):
                raise Throttled(limit=written_name(bound.name), key=bound.key, retry_after=wait)
            left -= yield from self._sleep(min(wait, left, _LOOK) if slots_bind else wait)

    def _sleep(self, seconds: float) -> Plan[float]:
        """Wait, and give how long that was."""
        began = time.monotonic()
        yield Sleep(seconds)
        return seconds if self.clock else time.monotonic() - began

    def decide(self, need: Need, max_wait: float | None) -> Plan[Decision]:
        """Give the decision of :meth:`acquire`."""
        taken = yield from self.acquire(need, max_wait)
        return taken.decision

    def peek(self, need: Need) -> Plan[Decision]:
        """Decide, and take nothing."""
        reply = yield from self._ask(need, "peek")
        if reply[0] == Outcome.ALLOWED:
            return _allowed(need, reply, "peek").decision
        return _refused(need, reply)[1]

    def acquire_up_to(self, need: Need) -> Plan[Decision]:
        """Take what there is of all limits, at most the cost."""
        reply = yield from self._ask(need, "upto")
        if reply[0] == Outcome.ALLOWED:
            return _allowed(need, reply, "upto").decision
        return _refused(need, reply)[1]

    def settle(self, reserved: Reserved, actual: Costs) -> Plan[None]:
        """Tell what was reserved what it was really worth."""
        need = reserved.need
        names, args = [self.keys.limits], [self.now()]
        taken = zip(need.refs, need.costs, costs_of(need.refs, actual, least=0), strict=True)
        for place, (ref, cost, worth) in enumerate(taken):
            names += (*self.keys.decision(ref), self.keys.waits(ref))
            since, mark = reserved.marks[2 * place : 2 * place + 2]
            args += (ref.name, self.keys.field(ref), cost, since, mark, min(worth, _TOO_MUCH))
        call = Call(script("settle"), names, args)
        reply = yield call
        if reply[0] == Outcome.UNKNOWN:
            yield from self.register_missing(need.refs, int(reply[2]))
            reply = yield call
        self.check(reply, [need])

    def release(self, refs: Sequence[LimitRef], holder: str) -> Plan[None]:
        """Give slots back."""
        names = [name for ref in refs for name in (self.keys.entries(ref), self.keys.waits(ref))]
        yield Call(script("release"), names, [self.now(), holder])

    def renew(self, held: Sequence[tuple[LimitRef, str]], lease: float) -> Plan[None]:
        """Let leases of slots go on for some seconds from now."""
        names = [self.keys.entries(ref) for ref, _ in held]
        holders = [holder for _, holder in held]
        yield Call(script("renew"), names, [self.now(), to_us(lease), *holders])

    def _ask(
        self,
        need: Need,
        mode: str,
        holder: Holder | None = None,
        longest: float | None = None,
    ) -> Plan[Sequence[int]]:
        """Run ``acquire.lua``; limits the server does not know are registered, and it is repeated.

        Raises as :meth:`check`.
        """
        call = None if holder or longest is not None else self._calls.get((need, mode))
        if call is None:
            call = self._acquire_call(need, mode, holder, longest)
        reply: Sequence[int] = yield call
        if reply[0] == Outcome.UNKNOWN:
            yield from self.register_missing(need.refs, int(reply[2]))
            reply = yield call
        if reply[0] < Outcome.REFUSED:
            self.check(reply, [need])
        return reply

    def _acquire_call(
        self, need: Need, mode: str, holder: Holder | None, longest: float | None
    ) -> Call:
        names, args = self._named(need)
        who = ("", "") if holder is None else (holder.name, to_us(holder.lease))
        delay = "" if longest is None else to_us(longest)
        call = Call(
            script("acquire"), [self.keys.limits, *names], [self.now(), mode, *who, delay, *args]
        )
        if self.clock is None and holder is None and longest is None:
            if len(self._calls) >= _KEPT:
                self._calls.clear()
            self._calls[need, mode] = call
        return call

    def gate_call(self, wants: Sequence[Want], ahead: int) -> Call:
        """The call of ``gate.lua`` for some tasks.

        Args:
            wants: what they need; no limit and key may come twice.
            ahead: how far ahead a start may be booked, in microseconds.
        """
        keys, args = [self.keys.limits], [self.now(), ahead]
        for want in wants:
            refs = want.need.refs
            _, about = self._named(want.need)
            for ref in refs:
                keys += (*self.keys.decision(ref), self.keys.backlog(ref))
            args += [want.times, len(refs), *about]
        return Call(script("gate"), keys, args)

    def _named(self, need: Need) -> tuple[list[str], list[Argument]]:
        """Keys and arguments of some limits, as ``decide.lua`` reads them."""
        names: list[str] = []
        args: list[Argument] = []
        for ref, cost in zip(need.refs, need.costs, strict=True):
            names += self.keys.decision(ref)
            # What is above any burst may have too many digits to be sent.
            args += (ref.name, self.keys.field(ref), min(cost, _TOO_MUCH))
        return names, args

    def check(self, reply: Sequence[int], needs: Sequence[Need]) -> None:
        """Raise what a reply is about that says that a call is wrong.

        Raises:
            CostError: the cost can never pass.
            UnknownLimitError: neither the server nor the code knows a limit.
            LimitValueError: the limit has slots.
        """
        if reply[0] >= Outcome.REFUSED:
            return
        refs = [ref for need in needs for ref in need.refs]
        costs = [cost for need in needs for cost in need.costs]
        ref, cost = refs[reply[1] - 1], costs[reply[1] - 1]
        if reply[0] == Outcome.UNKNOWN:
            raise unknown_limit(ref.name, self.limits)
        if reply[0] == Outcome.SLOTS:
            name = written_name(ref.name)
            raise LimitValueError(
                f"limit {name!r} has slots, which must be given back: "
                f"use 'with limiter[{name!r}].slot():'"
            )
        raise cost_too_high(cost, ref, reply[2])


_TOO_MUCH = (MAX_UNITS + 1) * MILLION


def _allowed(need: Need, reply: Sequence[int], mode: str) -> Reserved:
    _, remaining, reset, burst, delay, granted, *marks = reply
    units = 0 if mode == "peek" else need.costs[0]
    decision = Decision(
        True,  # noqa: FBT003  # by position: this is what every allowed call passes through
        burst,
        remaining,
        0.0,
        reset / MICROSECONDS,
        None,
        in_units(granted if mode == "upto" else units),
        delay / MICROSECONDS,
    )
    return Reserved(need, decision, marks)


def _refused(need: Need, reply: Sequence[int]) -> tuple[LimitRef, Decision]:
    """The limit that binds, and the decision."""
    _, wait, index, remaining, reset, burst, _ = reply
    bound = need.refs[index - 1]
    decision = Decision(
        allowed=False,
        limit=burst,
        remaining=remaining,
        retry_after=wait / MICROSECONDS,
        reset_after=reset / MICROSECONDS,
        bound_by=written_name(bound.name),
    )
    return bound, decision


def cost_too_high(cost: int, ref: LimitRef, burst: int) -> CostError:
    """The error for a cost (in millionths of a unit) that can never pass."""
    return CostError(
        f"cost {shown(in_units(cost))} can never pass limit {written_name(ref.name)!r}: "
        f"its burst is {burst}, and a cost must be at most that"
    )


def limits_of(mapping: Mapping[str, object]) -> list[str]:
    """The names users gave the limits of a mapping."""
    return list(dict.fromkeys(written_name(name) for name in mapping))
