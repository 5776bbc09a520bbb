"""Limits in the memory of one process, decided as on the server. Twin: ``decision.lua``.

:mod:`.memory` adds what else the server does, such as pauses and caps on keys.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from celery_throttle.algorithms.definition import Definition, States, adopt
from celery_throttle.algorithms.meters import LeakyQueue
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import Mark, State
from celery_throttle.errors import LimitValueError, UnknownLimitError, shown
from celery_throttle.limits.cost import MILLION, Cost, to_millionths, to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import LimitsLike, has_slots, parse_limits


class LimitCheck(NamedTuple):
    """One limit of a name and key at the time of a decision, and the requested cost."""

    ref: LimitRef
    limit: Limit
    state: State
    cost: int
    max_delay: int | None = None  #: the longest delay that the request accepts; None: any

    def wait(self, now: int) -> int:
        """Return the microseconds until the request would pass."""
        if self.max_delay is not None and self.delay(now) > self.max_delay:
            return self.delay(now) - self.max_delay
        return self.state.wait(self.limit, self.cost, now)

    def delay(self, now: int) -> int:
        """Return the microseconds until a request that is admitted now may start."""
        return self.state.delay(now) if isinstance(self.state, LeakyQueue) else 0

    def commit(self, now: int, delay: int) -> LimitCheck:
        """Take the cost. The lease of a slot begins with the start of its holder."""
        at = now + delay if isinstance(self.state, Slots) else now
        return self._replace(state=self.state.take(self.limit, self.cost, now, at))


class LocalTake(NamedTuple):
    """A take, as it is needed to settle it."""

    cost: int
    since: int  #: when its definition came into force
    marks: tuple[Mark, ...]  #: of each limit


#: The takes of one request.
LocalReservation = Mapping[LimitRef, LocalTake]


class LocalLimits:
    """Limits in the memory of one process. They decide as the server does.

    Not thread-safe. The state of every key that was used is kept; :class:`.memory.MemoryLimits`
    forgets those that no longer matter.

    Args:
        limits: name to limits, as text or :class:`Limit`, one or several.

    Attributes:
        refusing: the limit and key that refused the last request, if one did.
    """

    def __init__(self, limits: Mapping[str, LimitsLike] | None = None) -> None:
        self.refusing: LimitRef | None = None
        self._definitions: dict[LimitRef, Definition] = {}
        self._states: OrderedDict[LimitRef, States] = OrderedDict()
        for name, written in (limits or {}).items():
            self.define(LimitRef(name, None), written, 0)

    def define(self, ref: LimitRef, written: LimitsLike, now: int) -> None:
        """Define the limits of a name, or of one key of it; units in use stay in use."""
        limits = parse_limits(written, ref.name)
        old = self._find_definition(ref)
        if old is None:
            self._definitions[ref] = Definition(limits, now, now)
            return
        if any(map(has_slots, limits)) != any(map(has_slots, old.limits)):
            raise LimitValueError(f"limit {ref.name!r} cannot switch between a rate and slots")
        definition = self._definitions[ref] = old.replace_limits(limits, now)
        if ref in self._states:
            self._states[ref], _ = adopt(definition, self._states[ref], now)

    def use_up(self, ref: LimitRef, now: int) -> None:
        """Take the full burst of one name and key, except slots, as if nothing were in use."""
        definition = self._definition(ref)
        empty, _ = adopt(definition, None, now)
        self._states[ref] = tuple(
            state if isinstance(state, Slots) else state.fill(limit, limit.burst * MILLION, now)
            for state, limit in zip(empty, definition.limits, strict=True)
        )

    def acquire(
        self,
        costs: Mapping[LimitRef, Cost],
        now: int,
        *,
        take: bool = True,
        max_delay: int | None = None,
    ) -> Decision:
        """Take the cost of each from all its limits, or nothing from any.

        ``max_delay``: the longest delay, in microseconds, that is accepted of a leaky-queue.

        Raises:
            CostError: a cost can never pass.
            UnknownLimitError: a limit is not defined.
        """
        if not costs:
            raise LimitValueError("no limit was named; allowed: one or more")
        checks: list[LimitCheck] = []
        for ref, cost in costs.items():
            for limit in self._definition(ref).limits:
                amount = limit.check_cost(cost, ref.name, allow_zero=not take)
            checks += [
                check._replace(max_delay=max_delay) for check in self._check(ref, amount, now)
            ]
        return self._conclude(checks, now, take=take)

    def peek(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Return the decision of :meth:`acquire`, and take nothing. Costs may be 0."""
        return self.acquire(costs, now, take=False)

    def reserve(self, costs: Mapping[LimitRef, Cost], now: int) -> LocalReservation | None:
        """Take as :meth:`acquire`; return the takes, for :meth:`renew`. None: refused."""
        return self.last_takes(costs) if self.acquire(costs, now) else None

    def last_takes(self, costs: Mapping[LimitRef, Cost]) -> LocalReservation:
        """Return the takes of a request that has just been allowed."""
        return {
            ref: LocalTake(
                to_millionths(cost),
                self._states[ref][0].since,
                tuple(state.mark() for state in self._states[ref]),
            )
            for ref, cost in costs.items()
        }

    def renew(self, reservation: LocalReservation, lease: int, now: int) -> None:
        """Renew the leases of reserved slots for ``lease`` microseconds from now."""
        self._change_slots(reservation, lambda state, mark: state.renew(mark, lease, now))

    def _change_slots(
        self, reservation: LocalReservation, change: Callable[[Slots, Mark], Slots]
    ) -> None:
        for ref, take in reservation.items():
            if ref not in self._states:
                continue
            states = self._states[ref]
            marks = dict(zip(states, take.marks, strict=False))
            self._states[ref] = tuple(
                change(state, marks[state]) if isinstance(state, Slots) else state
                for state in states
            )

    def _conclude(self, checks: Sequence[LimitCheck], now: int, *, take: bool = True) -> Decision:
        waits = [self._wait(check, now) for check in checks]
        wait = max(waits)
        delay = max(check.delay(now) for check in checks) if wait == 0 else 0
        if wait == 0 and take:
            checks = [check.commit(now, delay) for check in checks]
            for ref in dict.fromkeys(check.ref for check in checks):
                self._states[ref] = tuple(check.state for check in checks if check.ref == ref)
        left = [check.state.remaining_and_reset(check.limit, now) for check in checks]
        units = [amount // MILLION for amount, _ in left]
        index = waits.index(wait) if wait else units.index(min(units))
        self.refusing = checks[index].ref if wait else None
        return Decision(
            allowed=wait == 0,
            burst=checks[index].limit.burst,
            remaining=units[index],
            retry_after=wait / MICROSECONDS,
            reset_after=max(reset for _, reset in left) / MICROSECONDS,
            limited_by=checks[index].ref.name if wait else None,
            granted=to_units(checks[0].cost) if wait == 0 and take else 0,
            delay=delay / MICROSECONDS,
        )

    def _wait(self, check: LimitCheck, now: int) -> int:
        """Return the microseconds to wait for one of the limits."""
        return check.wait(now)

    def _find_definition(self, ref: LimitRef) -> Definition | None:
        own = self._definitions.get(ref)
        return own or self._definitions.get(LimitRef(ref.name, None))

    def _definition(self, ref: LimitRef) -> Definition:
        definition = self._find_definition(ref)
        if definition is None:
            known = ", ".join(sorted({repr(known.name) for known in self._definitions})) or "none"
            raise UnknownLimitError(f"limit {shown(ref.name)} is not defined; allowed: {known}")
        return definition

    def _check(self, ref: LimitRef, cost: int, now: int) -> list[LimitCheck]:
        definition = self._definition(ref)
        states, changed = adopt(definition, self._states.get(ref), now)
        if changed:
            self._states[ref] = states
        return [
            LimitCheck(ref, limit, state, cost)
            for limit, state in zip(definition.limits, states, strict=True)
        ]
