"""Plans that take units and slots, and that settle, learn, renew and release what was taken."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from celery_throttle.errors import Throttled, ThrottleError
from celery_throttle.limits.cost import MILLION, to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MICROSECONDS, check_duration, pause_to_seconds, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import MAX_BOOKING_US
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Costs, Requirement, parse_costs
from celery_throttle.operations.author import API, Author
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.plan import (
    MAX_COST,
    Plan,
    PlanContext,
    Sleep,
    has_keys,
    ref_arguments,
)
from celery_throttle.operations.replies import (
    RefusalKind,
    ReplyStatus,
    check_reply,
    read_allowed,
    read_refused,
)
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call

#: Seconds between two attempts to take a slot, which may be released at any time.
_SLOT_POLL_SECONDS = 0.02

#: Announces that a call may wait.
_MAY_WAIT = Sleep(0.0)

#: The least sleep of a call that waits, in seconds.
_MIN_SLEEP_SECONDS = 0.001


class Holder(NamedTuple):
    """A holder of slots: a unique name, and the seconds of its first lease."""

    name: str
    lease: float


@dataclass(frozen=True, slots=True)
class GateRequest:
    """The requirement of tasks at a gate, and the number of tasks to admit at once."""

    requirement: Requirement
    times: int = 1


class Taken(NamedTuple):
    """Units of one limit and key that were taken, as they are sent between processes."""

    name: str
    key: str | None
    cost: int  #: millionths of a unit
    marks: Sequence[Any] = ()  #: identify the take, for :func:`settle`; empty if it is unknown


def read_takes(rows: Iterable[Sequence[Any]] = ()) -> list[Taken]:
    """Read takes that a script replies: lists of ``take_marks.lua``, with fields and costs."""
    return [
        Taken(*Keys.field_ref(field.decode()), cost, tuple(marks)) for field, cost, *marks in rows
    ]


class Acquisition(NamedTuple):
    """The result of taking units or slots.

    :meta private:
    """

    requirement: Requirement
    decision: Decision
    marks: Sequence[Any]  #: identify the take of each limit, for :func:`settle`; or empty
    #: Within a task, the part that the task already held; see :mod:`celery_throttle.tasks.context`.
    task_items: Sequence[Taken] = ()
    from_server: bool = True  #: whether a part of it was taken on the server
    refusing: LimitRef | None = None  #: the limit that refuses; then nothing was taken
    refusal: RefusalKind = RefusalKind.OTHER  #: the kind of the refusal

    def checked(self) -> Acquisition:
        """Return this acquisition; raise Throttled if it is a refusal."""
        if self.refusing is not None:
            wait, paused = self.decision.retry_after, self.decision.paused
            raise Throttled(self.refusing.name, self.refusing.key, wait, paused)
        return self


#: Calls that a requirement caches. They differ in the longest wait, of which each try of a caller
#: that waits has another; the one of its first try recurs.
_CACHED_CALLS = 4


class AcquirePlans(PlanContext):
    """Plans that take units and slots. What decides may be replaced: :meth:`_acquire_once`."""

    __slots__ = ()

    #: Seconds by which a call that waits comes early, since starts are booked ahead.
    early_seconds: ClassVar[float] = MAX_BOOKING_US / MICROSECONDS

    def acquire(
        self,
        requirement: Requirement,
        max_wait: float,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Acquisition]:
        """Take units or slots; wait for them for ``max_wait`` seconds at most.

        Raises:
            Throttled: the limits do not allow it in that time. Others as
                :func:`~celery_throttle.operations.replies.check_reply`.
        """
        longest = check_duration(max_wait, "max_wait")
        acquisition = yield from self.try_acquire(requirement, longest, mode=mode, holder=holder)
        return acquisition.checked()

    def try_acquire(
        self,
        requirement: Requirement,
        max_wait: float | None,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Acquisition]:
        """Take units or slots as :meth:`acquire`, or return the refusal.

        With ``max_wait`` None the plan does not sleep: the caller waits for ``decision.delay``.
        """
        left = 0.0 if max_wait is None else check_duration(max_wait, "max_wait")
        if left > 0:
            yield _MAY_WAIT  # before anything is taken
        while True:
            longest = None if max_wait is None else left
            taken = yield from self._acquire_once(requirement, mode, holder, longest)
            wait, by_slot = taken.decision.retry_after, taken.refusal == RefusalKind.NEEDS_SLOT
            if taken.refusing is None:
                if max_wait is not None and taken.decision.delay > 0:
                    yield from self._await_start(taken)
                return taken
            too_long = taken.refusal == RefusalKind.TOO_LONG
            if wait is None or left <= 0 or too_long or (wait > left and not by_slot):
                return taken
            early = max(wait - self.early_seconds, _MIN_SLEEP_SECONDS)
            nap = min(wait, left, _SLOT_POLL_SECONDS) if by_slot else early
            nap, began = min(nap, wait), time.monotonic()
            yield Sleep(nap)
            left -= nap if self.clock else time.monotonic() - began

    def _await_start(self, taken: Acquisition) -> Plan[None]:
        try:
            yield Sleep(taken.decision.delay)
        except BaseException:  # cancelled, or ended by the handler of a signal
            with suppress(ThrottleError):
                yield from self.settle(taken, 0)
            raise

    def cached_call(self, requirement: Requirement) -> Call | None:
        """Return the cached call of :meth:`acquire` without a wait, if there is one.

        The hot path runs it directly, without a plan, and reads the reply with
        :meth:`read_acquisition`. A call with a time of its own is never cached.
        """
        name = ("take", 0.0, self.keys.prefix)
        return requirement.calls.get(name) if self.clock is None else None

    @staticmethod
    def read_acquisition(requirement: Requirement, reply: Sequence[int]) -> Acquisition | None:
        """Return the acquisition of a reply; None if only a plan can handle the reply."""
        if reply[0] == ReplyStatus.ALLOWED:
            return Acquisition(requirement, read_allowed(reply, requirement.units), ())
        if reply[0] == ReplyStatus.REFUSED:
            refusing, decision = read_refused(requirement, reply)
            return Acquisition(requirement, decision, (), refusing=refusing)
        return None

    def peek(self, requirement: Requirement) -> Plan[Decision]:
        """Decide, and take nothing."""
        return (yield from self._acquire_once(requirement, "peek")).decision

    def acquire_up_to(self, requirement: Requirement) -> Plan[Decision]:
        """Take the units that all limits have, at most the cost."""
        return (yield from self._acquire_once(requirement, "upto")).decision

    def settle(self, acquisition: Acquisition, actual: Costs) -> Plan[None]:
        """Settle a reservation, made with mode ``reserve``, with its actual cost in units.

        A part of it may be older, as a task had it before. What is over is refunded of the newest
        part first, of which the most is still in use.
        """
        refs = acquisition.requirement.refs
        worth = [min(amount, MAX_COST) for amount in parse_costs(refs, actual, least=0)]
        if not acquisition.task_items:
            marks = acquisition.marks or [()] * len(refs)
            costs = acquisition.requirement.costs
            takes = [Taken(*ref, *one) for ref, *one in zip(refs, costs, marks, strict=True)]
            yield from settle_takes(self, list(zip(takes, worth, strict=True)))
            return
        parts = [_parts_of(acquisition, index) for index in range(len(refs))]
        left = [_settled_parts(*pair) for pair in zip(parts, worth, strict=True)]
        while any(left):  # a call settles one part of each limit
            yield from settle_takes(self, [settled.pop(0) for settled in left if settled])

    def _acquire_once(
        self,
        requirement: Requirement,
        mode: str,
        holder: Holder | None = None,
        longest: float | None = None,
    ) -> Plan[Acquisition]:
        """Run ``acquire.lua``, which describes the modes. Raises as :func:`check_reply`."""
        cacheable = holder is None and self.clock is None
        name = (mode, longest, self.keys.prefix)
        call = requirement.calls.get(name) if cacheable else None
        if call is None:
            call = self._acquire_call(requirement, mode, holder, longest)
            if cacheable and len(requirement.calls) < _CACHED_CALLS:
                requirement.calls[name] = call
        reply: Sequence[int] = yield from call_registered(self, call, requirement.refs)
        check_reply(reply, [requirement], self.limits)
        if reply[0] == ReplyStatus.ALLOWED:
            granted = {"peek": 0, "upto": to_units(reply[5])}.get(mode, requirement.units)
            return Acquisition(requirement, read_allowed(reply, granted), reply[6:])
        refusing, decision = read_refused(requirement, reply)
        kind = RefusalKind(reply[6])
        return Acquisition(requirement, decision, (), refusing=refusing, refusal=kind)

    def _acquire_call(
        self, requirement: Requirement, mode: str, holder: Holder | None, longest: float | None
    ) -> Call:
        names, args = ref_arguments(self.keys, requirement)
        if holder is not None:
            args += (holder.name, to_us(holder.lease))
        delay = "" if longest is None else to_us(longest)
        keys = [self.keys.limits, *names, self.keys.totals()]
        return self.call("acquire", keys, mode, delay, *args)


def gate_call(context: PlanContext, requests: Sequence[GateRequest], ahead: int) -> Call:
    """Return the call of ``admit.lua`` for several tasks; no limit and key may occur twice.

    ``ahead``: microseconds by which a start may be booked ahead.
    """
    refs = [ref for request in requests for ref in request.requirement.refs]
    costs = [cost for request in requests for cost in request.requirement.costs]
    names, about = ref_arguments(context.keys, Requirement(tuple(refs), tuple(costs)))
    backlogs = [context.keys.backlog(ref) for ref in refs]
    keys = [context.keys.limits, *names, *backlogs, context.keys.totals()]
    args: list[Argument] = [ahead, len(requests), int(has_keys(refs))]
    for request in requests:
        args += (request.times, len(request.requirement.refs))
    return context.call("admit", keys, *args, *about)


def _parts_of(acquisition: Acquisition, index: int) -> list[Taken]:
    """Return what was taken of one limit, the newest part first."""
    ref, cost = acquisition.requirement.refs[index], acquisition.requirement.costs[index]
    older = [one for one in acquisition.task_items if one[:2] == ref]
    fresh = cost - sum(one.cost for one in older)
    marks = acquisition.marks[index] if acquisition.marks else ()
    return [Taken(*ref, fresh, marks), *older] if fresh > 0 else older


def _settled_parts(parts: Sequence[Taken], actual: int) -> list[tuple[Taken, int]]:
    """Return the parts whose cost changes, each with its actual cost."""
    over = sum(part.cost for part in parts) - actual
    found = []
    for part in parts:
        change = over if over < 0 else min(over, part.cost)
        over -= change
        if change < 0 or (change > 0 and part.marks):  # no take without marks can be refunded
            found.append((part, part.cost - change))
    return found


def settle_takes(context: PlanContext, takes: Sequence[tuple[Taken, int]]) -> Plan[None]:
    """Settle takes of different limits and keys, each with its actual cost in millionths."""
    refs = tuple(LimitRef(take.name, take.key) for take, _ in takes)
    requirement = Requirement(refs, tuple(take.cost for take, _ in takes))
    keys = context.keys
    names, args = ref_arguments(keys, requirement)
    waits = [keys.waiting_lists(ref) for ref in refs]
    names = [keys.limits, *names, *waits, keys.totals()]
    marks = chain.from_iterable(take.marks or (0, 0) for take, _ in takes)
    about = int(has_keys(refs)), *args, *(worth for _, worth in takes), *marks
    call = context.call("settle_reservation", names, *about)
    check_reply((yield from call_registered(context, call, refs)), [requirement], context.limits)


def learn(
    context: PlanContext,
    answers: Mapping[LimitRef, Feedback],
    task: tuple[str, str] | None = None,
) -> Plan[float]:
    """Apply what an answer says about each limit; return the seconds of the longest stop.

    ``task``: the id and the name of the task that has sent the request. The result is infinity
    if one of the limits is paused until it is resumed.
    """
    requirement, keys = Requirement(tuple(answers), (0,) * len(answers)), context.keys
    names, about = ref_arguments(keys, requirement)
    args: list[Argument] = [int(has_keys(requirement.refs)), *about]
    for ref, feedback in answers.items():
        names += (keys.refusals(ref), keys.pause_origin(ref), keys.paused_keys(ref.name))
        args += _feedback_arguments(feedback)
        request = (ref.key, *(task or (None, None)))
        args.append(json.dumps(request) if feedback.refused else "")
    call = context.call("learn", [keys.limits, *names, keys.totals()], *args)
    reply = yield from call_registered(context, call, requirement.refs)
    check_reply(reply, [requirement], context.limits)
    return pause_to_seconds(reply[1])


def release(context: PlanContext, refs: Sequence[LimitRef], holder: str) -> Plan[None]:
    """Release the slots of a holder."""
    keys = context.keys
    names = [name for ref in refs for name in (keys.entries(ref), keys.waiting_lists(ref))]
    yield context.call("release", names, holder)


def renew(context: PlanContext, slots: Sequence[tuple[LimitRef, str]], lease: float) -> Plan[None]:
    """Renew the leases of slots, each a limit and a holder, for ``lease`` seconds from now."""
    yield renew_call(context, [(context.keys.entries(ref), holder) for ref, holder in slots], lease)


def renew_call(
    context: PlanContext, slots: Sequence[tuple[str, str]], lease: float, *, anew: bool = False
) -> Call:
    """Return the call of :meth:`renew`, for slots by the keys of their entries.

    ``anew``: also adds slots that the server does not know.
    """
    holders = [holder for _, holder in slots]
    entries = [entries for entries, _ in slots]
    keys = context.keys
    names = [*entries, *map(keys.key_cap_of, entries), *map(keys.state_of, entries)]
    return context.call("renew", names, to_us(lease), int(anew), *holders)


def _feedback_arguments(feedback: Feedback) -> list[Argument]:
    """Return feedback as ``learn.lua`` reads it."""
    kind = "refused" if feedback.refused else "overloaded" if feedback.overloaded else ""
    return [
        kind,
        -1 if feedback.stop is None else to_us(feedback.stop),
        -1 if feedback.left is None else min(feedback.left, MAX_UNITS) * MILLION,
        -1 if feedback.limit is None else min(feedback.limit, MAX_UNITS),
        0 if feedback.period is None else max(1, to_us(feedback.period)),
        -1 if feedback.took is None else to_us(feedback.took),
        _author_of(feedback).pack(),
    ]


def _author_of(feedback: Feedback) -> Author:
    what = "its answer"
    if feedback.refused or feedback.overloaded:
        what = "it refused a request" if feedback.refused else "it is overloaded"
    asked = "" if feedback.stop is None else f", and asked to stop for {feedback.stop:g} s"
    return Author(API, what + asked)
