"""What each operation on limits does, written once for code that waits and for asyncio.

A plan is a generator. It yields what it needs from outside, a
:class:`~celery_throttle.store.script.Call` to run on the server or a
:class:`~celery_throttle.operations.changes.Sleep`, and returns the answer. It neither waits nor
talks to a server itself; :mod:`celery_throttle.limiter` does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from celery_throttle.errors import CostError, LimitValueError, Throttled, shown
from celery_throttle.limits.cost import MILLION, in_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Heard
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import FARTHEST
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Costs, Need, costs_of, too_many_keys
from celery_throttle.operations.changes import (
    MICROSECONDS,
    Changes,
    Plan,
    Sleep,
    check_wait,
    seconds_paused,
    to_us,
    unknown_limit,
)
from celery_throttle.store.script import Argument, Call, script

#: Where a refusal tells for how long (us) its limit is paused, if it was not the quick way.
_PAUSED = 7

#: Seconds between two looks for a slot, which may be given back at any time.
_LOOK = 0.02

#: Seconds that a limit is booked ahead at most for who waits, and the least to wait till then.
_AHEAD, _BRIEF = FARTHEST / MICROSECONDS, 0.001


class Outcome(IntEnum):
    """How ``acquire.lua`` and ``admit.lua`` begin a reply."""

    ALLOWED = 1
    REFUSED = 0
    NEVER = -1
    UNKNOWN = -2
    SLOTS = -3
    KEYS = -4


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
    """What was taken, and how the script tells it from what others took.

    Within a task, some of it may have been ``given`` to that before; then the rest was ``asked`` of
    the server, if there was any. See :mod:`celery_throttle.tasks.context`.
    """

    need: Need
    decision: Decision
    marks: Sequence[int]
    given: Sequence[tuple[str, str | None, int]] = ()
    asked: bool = True


@dataclass(frozen=True, slots=True)
class Plans(Changes):
    """The operations on the limits of one prefix."""

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
                decision = _allowed(reply, need.units)
                if max_wait is not None and decision.delay > 0:
                    yield Sleep(decision.delay)
                return Reserved(need, decision, reply[6:])
            bound, decision = _refused(need, reply)
            if max_wait is None:
                return Reserved(need, decision, ())
            slots_bind, too_long = reply[6] == 1, reply[6] == 2  # noqa: PLR2004  # see acquire.lua
            wait = decision.retry_after
            if wait is None or left <= 0 or too_long or (wait > left and not slots_bind):
                raise Throttled(bound.name, bound.key, wait, decision.paused)
            nap = min(wait, left, _LOOK) if slots_bind else max(wait - _AHEAD, _BRIEF)
            left -= yield from self._sleep(min(nap, wait))

    def _sleep(self, seconds: float) -> Plan[float]:
        """Wait, and give how long that was."""
        began = time.monotonic()
        yield Sleep(seconds)
        return seconds if self.clock else time.monotonic() - began

    def decide(self, need: Need, max_wait: float | None) -> Plan[Decision]:
        """Give the decision of :meth:`acquire`."""
        taken = yield from self.acquire(need, max_wait)
        return taken.decision

    def ready(self, need: Need) -> Call | None:
        """The call of :meth:`acquire`, if it was made before: what is asked all the time.

        An end runs it without a plan, and gives what :meth:`told` reads.
        """
        return need.calls.get(("take", self.keys.prefix))

    @staticmethod
    def told(need: Need, reply: Sequence[int]) -> Decision | None:
        """The decision of a reply; None if it is something that a plan has to deal with."""
        if reply[0] == 1:
            return _allowed(reply, need.units)
        return _refused(need, reply)[1] if reply[0] == 0 else None

    def peek(self, need: Need) -> Plan[Decision]:
        """Decide, and take nothing."""
        reply = yield from self._ask(need, "peek")
        if reply[0] == Outcome.ALLOWED:
            return _allowed(reply, 0)
        return _refused(need, reply)[1]

    def acquire_up_to(self, need: Need) -> Plan[Decision]:
        """Take what there is of all limits, at most the cost."""
        reply = yield from self._ask(need, "upto")
        if reply[0] == Outcome.ALLOWED:
            return _allowed(reply, in_units(reply[5]))
        return _refused(need, reply)[1]

    def settle(self, reserved: Reserved, actual: Costs) -> Plan[None]:
        """Tell what was reserved what it was really worth."""
        need = reserved.need
        keys, args = self._named(need)
        names = [self.keys.limits, *keys, *(self.keys.waits(ref) for ref in need.refs)]
        worth = [min(amount, _TOO_MUCH) for amount in costs_of(need.refs, actual, least=0)]
        about = [self.now(), int(has_keys(need.refs)), *args, *worth, *reserved.marks]
        call = Call(script("settle"), names, about)
        reply = yield call
        if reply[0] == Outcome.UNKNOWN:
            yield from self.register_missing(need.refs, int(reply[2]))
            reply = yield call
        self.check(reply, [need])

    def learn(self, need: Need, heard: Heard) -> Plan[float]:
        """Tell limits what an answer says of them; gives the seconds for which they stop.

        That is infinity if one of them is paused until it is resumed.
        """
        names, about = self._named(need)
        stop = -1 if heard.stop is None else to_us(heard.stop)
        left = [heard.left_of(ref.name) for ref in need.refs]
        lefts = [-1 if one is None else min(one, MAX_UNITS) * MILLION for one in left]
        told = [int(heard.refused), stop, to_us(heard.took)]
        args = [self.now(), int(has_keys(need.refs)), *about, *lefts, *told]
        call = Call(script("learn"), [self.keys.limits, *names], args)
        reply = yield call
        if reply[0] == Outcome.UNKNOWN:
            yield from self.register_missing(need.refs, int(reply[2]))
            reply = yield call
        self.check(reply, [need])
        return seconds_paused(reply[1])

    def release(self, refs: Sequence[LimitRef], holder: str) -> Plan[None]:
        """Give slots back."""
        names = [name for ref in refs for name in (self.keys.entries(ref), self.keys.waits(ref))]
        yield Call(script("release"), names, [self.now(), holder])

    def renew(self, held: Sequence[tuple[LimitRef, str]], lease: float) -> Plan[None]:
        """Let leases of slots go on for some seconds from now."""
        yield self.renew_call([(self.keys.entries(ref), holder) for ref, holder in held], lease)

    def renew_call(
        self, held: Sequence[tuple[str, str]], lease: float, *, anew: bool = False
    ) -> Call:
        """The call of :meth:`renew`, for slots by their entries; ``anew``: unknown ones, too."""
        holders = [holder for _, holder in held]
        args = [self.now(), to_us(lease), int(anew), *holders]
        entries = [entries for entries, _ in held]
        keys = self.keys
        names = [*entries, *map(keys.crowd_of, entries), *map(keys.state_of, entries)]
        return Call(script("renew"), names, args)

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
        kept = holder is None and longest is None and self.clock is None
        call = need.calls.get((mode, self.keys.prefix)) if kept else None
        if call is None:
            call = self._acquire_call(need, mode, holder, longest)
            if kept:
                need.calls[mode, self.keys.prefix] = call
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
        if holder is not None:
            args += (holder.name, to_us(holder.lease))
        delay = "" if longest is None else to_us(longest)
        keys = [self.keys.limits, *names]
        return Call(script("acquire"), keys, [self.now(), mode, delay, *args])

    def gate_call(self, wants: Sequence[Want], ahead: int) -> Call:
        """The call of ``admit.lua`` for some tasks.

        Args:
            wants: what they need; no limit and key may come twice.
            ahead: how far ahead a start may be booked, in microseconds.
        """
        refs = [ref for want in wants for ref in want.need.refs]
        costs = [cost for want in wants for cost in want.need.costs]
        names, about = self._named(Need(tuple(refs), tuple(costs)))
        keys = [self.keys.limits, *names, *(self.keys.backlog(ref) for ref in refs)]
        args: list[Argument] = [self.now(), ahead, len(wants), int(has_keys(refs))]
        for want in wants:
            args += (want.times, len(want.need.refs))
        return Call(script("admit"), keys, [*args, *about])

    def _named(self, need: Need) -> tuple[list[str], list[Argument]]:
        """Keys and arguments of some limits, as ``requirements.lua`` reads them."""
        keys = self.keys
        if has_keys(need.refs):
            states = [name for ref in need.refs for name in keys.decision(ref)]
            fields = [name for ref in need.refs for name in (keys.field(ref), ref.name)]
        else:
            states = [name for ref in need.refs for name in (keys.state(ref), keys.pause(ref))]
            fields = [ref.name for ref in need.refs]
        # What is above any burst may have too many digits to be sent.
        costs = [min(cost, _TOO_MUCH + cost % MILLION) for cost in need.costs]
        return [*states, *(keys.entries(ref) for ref in need.refs)], [*fields, *costs]

    def check(self, reply: Sequence[int], needs: Sequence[Need]) -> None:
        """Raise what a reply is about that says that a call is wrong.

        Raises:
            CostError: the cost can never pass.
            UnknownLimitError: neither the server nor the code knows a limit.
            LimitValueError: the limit has slots, or more keys of it are named than its max-keys.
        """
        if reply[0] >= Outcome.REFUSED:
            return
        refs = [ref for need in needs for ref in need.refs]
        costs = [cost for need in needs for cost in need.costs]
        ref, cost = refs[reply[1] - 1], costs[reply[1] - 1]
        if reply[0] == Outcome.UNKNOWN:
            raise unknown_limit(ref.name, self.limits)
        if reply[0] == Outcome.SLOTS:
            name = ref.name
            raise LimitValueError(
                f"limit {name!r} has slots, which must be given back: "
                f"use 'with limiter[{name!r}].slot():'"
            )
        if reply[0] == Outcome.KEYS:
            raise too_many_keys(ref.name, reply[2])
        raise cost_too_high(cost, ref, reply[2])


_TOO_MUCH = (MAX_UNITS + 1) * MILLION


def has_keys(refs: Sequence[LimitRef]) -> bool:
    """Whether any of them is a key of its limit."""
    return any(ref.key is not None for ref in refs)


def _allowed(reply: Sequence[int], granted: float) -> Decision:
    # By position: this is what every allowed call passes through.
    return Decision(
        True,  # noqa: FBT003  # see above
        reply[3],
        reply[1],
        0.0,
        reply[2] / 1e6,
        None,
        granted,
        reply[4] / 1e6,
    )


def _refused(need: Need, reply: Sequence[int]) -> tuple[LimitRef, Decision]:
    """The limit that binds, and the decision."""
    bound = need.refs[reply[2] - 1]
    decision = Decision(
        False,  # noqa: FBT003  # see above
        reply[5],
        reply[3],
        reply[1] / MICROSECONDS,
        reply[4] / MICROSECONDS,
        bound.name,
    )
    if len(reply) > _PAUSED and reply[_PAUSED]:
        decision = decision.while_paused(seconds_paused(reply[_PAUSED]))
    return bound, decision


def cost_too_high(cost: int, ref: LimitRef, burst: int) -> CostError:
    """The error for a cost (in millionths of a unit) that can never pass."""
    return CostError(
        f"cost {shown(in_units(cost))} can never pass limit {ref.name!r}: "
        f"its burst is {burst}, and a cost must be at most that"
    )
