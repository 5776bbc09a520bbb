"""Plans that decide in the memory of this process: they yield no calls, and need no server.

:class:`MemoryPlans` decides as the server does, for tests. :class:`DisabledPlans` allows all
requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from operator import itemgetter
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from celery_throttle.algorithms.memory import LocalReservation, MemoryLimits
from celery_throttle.limits.cost import to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import Duration, check_duration, pause_to_seconds, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import (
    Costs,
    LimitsLike,
    Requirement,
    has_slots,
    parse_costs,
)
from celery_throttle.limits.rules.rules import sort_refs
from celery_throttle.operations.acquire import AcquirePlans, Acquisition, Holder
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import parse_definition
from celery_throttle.operations.plan import Clock, Plan
from celery_throttle.operations.replies import RefusalKind, slot_needed_error, unknown_limit_error
from celery_throttle.operations.rules import Applied, FileRules
from celery_throttle.store.keys import Keys

P = ParamSpec("P")
T = TypeVar("T")


def _plan(
    operation: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Plan[T]]:
    """Return an operation as a plan without calls, which holds the lock."""

    @wraps(operation)
    def plan(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
        yield from ()
        with self._lock:
            return operation(self, *args, **kwargs)

    return plan


@dataclass(frozen=True, slots=True)
class MemoryPlans(AcquirePlans):
    """Plans for limits in the memory of this process. Made by :meth:`of`. Thread-safe.

    No task waits in a line, so weights have no effect. Authors are not recorded.
    """

    early_seconds: ClassVar[float] = 0.0  # no start is booked ahead

    _memory: MemoryLimits = field(default_factory=MemoryLimits)
    #: The takes of each holder of slots, by its name.
    _held: dict[str, LocalReservation] = field(default_factory=dict)
    #: Names and keys that were defined at run time, and the limits of the rules file.
    _set: set[LimitRef] = field(default_factory=set)
    _rules: dict[LimitRef, Limits] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, limits: Mapping[str, Limits], keys: Keys, clock: Clock | None) -> MemoryPlans:
        """Return the plans for the limits of the code, of which nothing is in use."""
        return cls(limits, keys, clock, _memory=MemoryLimits(limits))

    def cached_call(self, requirement: Requirement) -> None:
        return None

    @_plan
    def _acquire_once(
        self,
        requirement: Requirement,
        mode: str,
        holder: Holder | None = None,
        longest: float | None = None,
    ) -> Acquisition:
        for ref in requirement.refs:
            self._check_name(ref.name)
            if mode in ("take", "upto", "reserve") and self._has_slots(ref):
                raise slot_needed_error(ref.name)
        memory, now = self._memory, self._now()
        costs = dict(zip(requirement.refs, map(to_units, requirement.costs), strict=True))
        if mode == "upto":
            decision = memory.acquire_up_to(costs, requirement.units, now)
            return self._without_marks(requirement, decision)
        max_delay = None if longest is None else to_us(longest)
        decision = memory.acquire(costs, now, take=mode != "peek", max_delay=max_delay)
        if mode == "peek" or not decision:
            refused = self._without_marks(requirement, decision)
            delayed = max_delay is not None and memory.delay(costs, now) > max_delay
            too_long = delayed and refused.refusal != RefusalKind.NEEDS_SLOT
            return refused._replace(refusal=RefusalKind.TOO_LONG) if too_long else refused
        takes = memory.last_takes(costs)
        if holder is not None:
            memory.renew(takes, to_us(holder.lease + decision.delay), now)
            self._held[holder.name] = takes
        return Acquisition(requirement, decision._replace(granted=requirement.units), (takes,))

    def _without_marks(self, requirement: Requirement, decision: Decision) -> Acquisition:
        """Return the result of the last attempt, if it is a refusal or cannot be settled."""
        refusing, kind = self._memory.refusing, RefusalKind.OTHER
        if refusing is not None and not decision.paused and self._has_slots(refusing):
            kind = RefusalKind.NEEDS_SLOT
        return Acquisition(requirement, decision, (), refusing=refusing, refusal=kind)

    def _check_name(self, name: str) -> None:
        if name not in self._memory.names():
            raise unknown_limit_error(name, self.limits)

    def _has_slots(self, ref: LimitRef) -> bool:
        return any(map(has_slots, self._memory.limits_of(ref)))

    @_plan
    def settle(self, acquisition: Acquisition, actual: Costs) -> None:
        refs = acquisition.requirement.refs
        worth = dict(zip(refs, map(to_units, parse_costs(refs, actual, least=0)), strict=True))
        for takes in acquisition.marks:
            self._memory.settle(takes, worth, self._now())

    @_plan
    def learn(self, answers: Mapping[LimitRef, Feedback], _task: object = None) -> float:
        return pause_to_seconds(self._memory.learn(answers, self._now()))

    @_plan
    def release(self, refs: Sequence[LimitRef], holder: str) -> None:
        if holder in self._held:
            self._memory.release(self._held.pop(holder))

    @_plan
    def renew(self, slots: Sequence[tuple[LimitRef, str]], lease: float) -> None:
        for holder in {holder for _, holder in slots} & self._held.keys():
            self._memory.renew(self._held[holder], to_us(lease), self._now())

    @_plan
    def register(self, limits: Mapping[str, Limits]) -> Mapping[str, str]:
        for name in limits.keys() - self._memory.names():
            self._memory.define(LimitRef(name, None), limits[name], self._now())
        return {}

    @_plan
    def define(
        self,
        ref: LimitRef,
        written: LimitsLike | None,
        weight: int | None = None,
        *,
        lasts: Duration | None = None,
        author: Author | None = None,
    ) -> None:
        limits, lasts_us = parse_definition(self, ref, written, weight, lasts)
        if limits is None or ref.key is not None:
            self._check_name(ref.name)
        if limits is not None:
            now = self._now()
            self._memory.define(ref, limits, now)
            self._set.add(ref)
            self._memory.ends.pop(ref, None)
            if lasts_us:
                self._memory.ends[ref] = now + lasts_us

    @_plan
    def undefine(self, ref: LimitRef, author: Author | None = None) -> None:
        self._check_name(ref.name)
        self._undefine(ref, self._now())

    def _undefine(self, ref: LimitRef, now: int) -> None:
        self._memory.ends.pop(ref, None)
        self._set.discard(ref)
        code = None if ref.key is not None else self.limits.get(ref.name)
        self._memory.undefine(ref, self._rules.get(ref, code), now)

    @_plan
    def apply_rules(
        self, file: FileRules, author: Author | None = None, *, is_new: bool = False
    ) -> Applied:
        now = self._now()
        changed = {*self._rules, *file.in_shard.limits} - self._set
        self._rules.clear()
        self._rules.update(file.in_shard.limits)
        # A key gets limits of its own before its name changes, and loses them after that.
        first = {ref for ref in changed if ref.key is not None and ref in self._rules}
        for ref in (*sort_refs(first), *sort_refs(changed - first)):
            self._undefine(ref, now)
        return Applied(accepted=True, modified=now)

    def _now(self) -> int:
        """Return the time, after what has ended by then was removed."""
        now = self.local_time()
        self._memory.forget_idle(now)
        for ref, ends in sorted(self._memory.ends.items(), key=itemgetter(1)):
            if ends <= now:
                self._undefine(ref, ends)
        return now

    @_plan
    def check_known(self, ref: LimitRef) -> None:
        self._check_name(ref.name)

    @_plan
    def list_names(self) -> tuple[int, list[str]]:
        return self._now(), self._memory.names()

    @_plan
    def pause(self, ref: LimitRef, lasts: Duration | None, author: Author | None = None) -> float:
        us = None if lasts is None else to_us(check_duration(lasts, "a pause"))
        self._check_name(ref.name)
        return pause_to_seconds(self._memory.pause(ref, us, self._now()))

    @_plan
    def resume(self, ref: LimitRef, author: Author | None = None) -> bool:
        self._check_name(ref.name)
        return self._memory.resume(ref, self._now())

    @_plan
    def reset(self, ref: LimitRef, author: Author | None = None) -> None:
        self._check_name(ref.name)
        self._memory.reset(ref)


class DisabledPlans(MemoryPlans):
    """Plans that allow all requests, of limits that are not defined as well."""

    __slots__ = ()

    @_plan
    def _acquire_once(
        self,
        requirement: Requirement,
        mode: str,
        holder: Holder | None = None,
        longest: float | None = None,
    ) -> Acquisition:
        bursts = [
            limit.burst for ref in requirement.refs for limit in self.limits.get(ref.name, ())
        ]
        granted = 0 if mode == "peek" else requirement.units
        return Acquisition(
            requirement, Decision.allowance(granted, min(bursts, default=0)), marks=()
        )

    @_plan
    def learn(self, answers: Mapping[LimitRef, Feedback], _task: object = None) -> float:
        return 0.0

    def _check_name(self, name: str) -> None:
        """Allow any name."""
