"""Limits in the memory of one process, decided as on the server.

A limiter without a server decides with it, a worker does during an outage, and so do simulations.
The tests compare the scripts on the server with it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from celery_throttle.algorithms.decision import LimitCheck, decide
from celery_throttle.algorithms.definition import Definition, States, adopt
from celery_throttle.algorithms.pauses import Pause, RefusalRows
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import Mark
from celery_throttle.errors import LimitValueError, UnknownLimitError, nearest, shown
from celery_throttle.limits.cost import MILLION, Cost, to_millionths
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import ENDLESS_US, pause_to_seconds, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import MAX_LEASE_SECONDS, Limits
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import (
    LimitsLike,
    check_same_kind,
    find_strictest,
    parse_limits,
    too_many_keys_error,
)

#: The largest actual cost of a reservation that counts; a server is sent no larger one.
_MAX_ACTUAL = (MAX_UNITS + 1) * MILLION

#: States and pauses that :meth:`MemoryLimits.forget_idle` checks: more than one operation adds.
_CHECKED_PER_CALL = 2


class LocalTake(NamedTuple):
    """A take, as it is needed to settle it."""

    cost: int
    since: int  #: when its definition came into force
    marks: tuple[Mark, ...]  #: of each limit


#: The takes of one request.
LocalReservation = Mapping[LimitRef, LocalTake]


class MemoryLimits:
    """Limits in the memory of one process, with all that the server does. Not thread-safe.

    Args:
        limits: name to limits, as text or :class:`Limit`, one or several.

    Attributes:
        refusing: the limit and key that refused the last request, if one did.
        ends: when definitions end, in microseconds. The caller removes them then.
    """

    def __init__(self, limits: Mapping[str, LimitsLike] | None = None) -> None:
        self.refusing: LimitRef | None = None
        self.ends: dict[LimitRef, int] = {}
        self._definitions: dict[LimitRef, Definition] = {}
        self._states: OrderedDict[LimitRef, States] = OrderedDict()
        self._pauses: OrderedDict[LimitRef, Pause] = OrderedDict()
        self._refusals = RefusalRows()
        #: By name: its keys, and until when units or slots of each are in use. For ``max-keys``.
        self._used_keys: defaultdict[str, dict[str, int]] = defaultdict(dict)
        #: The highest number of a lease among the states that were forgotten.
        self._last_slot = 0
        for name, written in (limits or {}).items():
            self.define(LimitRef(name, None), written, 0)

    def define(self, ref: LimitRef, written: LimitsLike, now: int) -> None:
        """Define the limits of a name, or of one key of it; units in use stay in use."""
        limits = parse_limits(written, ref.name)
        old = self._find_definition(ref)
        if old is None:
            self._definitions[ref] = Definition(limits, now, now)
            return
        check_same_kind(ref.name, limits, old.limits)
        definition = self._definitions[ref] = old.replace_limits(limits, now)
        before = self._states.get(ref)
        if before is not None:
            states, _ = adopt(definition, before, now)
            if states != before:
                self._store(ref, states, now)

    def undefine(self, ref: LimitRef, default: LimitsLike | None, now: int) -> None:
        """Define a name as ``default``; None: remove its definition, or that of one key."""
        if default is not None:
            self.define(ref, default, now)
            return
        own = self._definitions.pop(ref, None)
        whole = self._find_definition(ref)
        if own is not None and whole is not None and ref in self._states:
            # What is in use counts by the limits of the name from now on.
            now_in_force = own.replace_limits(whole.limits, now)
            states, _ = adopt(now_in_force, self._states[ref], now)
            self._states[ref] = tuple(replace(state, since=whole.since) for state in states)

    def names(self) -> list[str]:
        """Return the names of all limits that are defined, alone or for a key."""
        return list({ref.name: None for ref in self._definitions})

    def limits_of(self, ref: LimitRef) -> Limits:
        """Return the limits in force of a name, or of one key of it; none if it is not defined."""
        definition = self._find_definition(ref)
        return () if definition is None else definition.limits

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
            checks += self._check(ref, amount, now, max_delay)
        return self._decide(self._block(checks, now), now, take=take)

    def peek(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Return the decision of :meth:`acquire`, and take nothing. Costs may be 0."""
        return self.acquire(costs, now, take=False)

    def acquire_up_to(self, refs: Iterable[LimitRef], most: Cost, now: int) -> Decision:
        """Take the units that all limits have, at most ``most``; whole units if that is whole."""
        wanted = to_millionths(most, allow_zero=True)
        checks = [check for ref in refs for check in self._check(ref, wanted, now)]
        checks = self._block(checks, now)
        granted = min(wanted, *(check.remaining_and_reset(now)[0] for check in checks))
        if wanted % MILLION == 0:
            granted -= granted % MILLION
        # If nothing is available, the decision is the refusal of one unit.
        cost = granted or min(wanted, MILLION)
        checks = [check._replace(cost=cost) for check in checks]
        return self._decide(checks, now, take=wanted > 0)

    def delay(self, refs: Iterable[LimitRef], now: int) -> int:
        """Return the microseconds until a request that is admitted now may start."""
        return max(check.delay(now) for ref in refs for check in self._check(ref, 0, now))

    def reserve(self, costs: Mapping[LimitRef, Cost], now: int) -> LocalReservation | None:
        """Take as :meth:`acquire`; return the takes, to settle or to renew. None: refused."""
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

    def settle(
        self, reservation: LocalReservation, actual: Mapping[LimitRef, Cost], now: int
    ) -> None:
        """Refund what was reserved too much, or charge what was reserved too little.

        If the limits have changed since, nothing is refunded, and a debt counts as taken now.
        """
        for ref, take in reservation.items():
            worth = min(to_millionths(actual[ref], allow_zero=True), _MAX_ACTUAL)
            checks = self._check(ref, 0, now)
            same = checks[0].state.since == take.since and len(checks) == len(take.marks)
            if worth > take.cost or (worth < take.cost and same):
                marks = take.marks if same else (Mark(0),) * len(checks)
                settled = tuple(
                    check.state.settle(check.limit, mark, take.cost, worth, now)
                    for check, mark in zip(checks, marks, strict=True)
                )
                if any(one is not check.state for one, check in zip(settled, checks, strict=True)):
                    self._store(ref, settled, now)

    def learn(self, answers: Mapping[LimitRef, Feedback], now: int) -> int:
        """Apply what an answer says about each limit; return the longest stop in microseconds.

        If the API says that less of its quota is left than of a limit, the difference counts as
        taken by another client.
        """
        longest = 0
        for ref, feedback in answers.items():
            checks = self._check(ref, 0, now)
            states = tuple(check.learn(feedback, now) for check in checks)
            if any(one is not check.state for one, check in zip(states, checks, strict=True)):
                self._store(ref, states, now)
            is_adaptive = any(check.limit.is_adaptive for check in checks)
            stop = self._refusals.next_stop(ref, feedback, now, is_adaptive=is_adaptive)
            if stop:
                longest = max(longest, self.pause(ref, stop, now))
            if feedback.refused or feedback.overloaded:
                longest = max(longest, self._pause_left(ref, now))
        return longest

    def renew(self, reservation: LocalReservation, lease: int, now: int) -> None:
        """Renew the leases of reserved slots for ``lease`` microseconds from now."""
        self._change_slots(reservation, lambda state, mark: state.renew(mark, lease, now))
        for ref in reservation:
            used = self._used_keys[ref.name]
            for state in self._states.get(ref, ()):
                if isinstance(state, Slots) and state.leases and ref.key in used:
                    used[ref.key] = max(used[ref.key], state.leases[-1].until)

    def release(self, reservation: LocalReservation) -> None:
        """Release reserved slots."""
        self._change_slots(reservation, lambda state, mark: state.release(mark))

    def _change_slots(
        self, reservation: LocalReservation, change: Callable[[Slots, Mark], Slots]
    ) -> None:
        for ref in reservation.keys() & self._states.keys():
            states = self._states[ref]
            marks = dict(zip(states, reservation[ref].marks, strict=False))
            self._states[ref] = tuple(
                change(state, marks[state]) if isinstance(state, Slots) else state
                for state in states
            )

    def pause(self, ref: LimitRef, us: int | None, now: int) -> int:
        """Pause a name, or one key of it; None: until it is resumed. Never shortens a pause.

        Returns the microseconds for which it is paused now.
        """
        until = now + (ENDLESS_US if us is None else us)
        old = self._pauses.get(ref, Pause(until, now)).follow_clock(now)
        self._pauses[ref] = Pause(max(until, old.until), now)
        return self._pauses[ref].until - now

    def resume(self, ref: LimitRef, now: int = 0) -> bool:
        """Lift the pause of a name, or of one key of it; return whether it was paused ``now``."""
        pause = self._pauses.pop(ref, None)
        return pause is not None and pause.until > now

    def reset(self, ref: LimitRef) -> None:
        """Clear the state of one name and key, and lift its pause. Slots in use stay in use."""
        self.resume(ref)
        states = self._states.pop(ref, ())
        slots = next((state for state in states if isinstance(state, Slots)), None)
        if slots is not None:
            leases, number = slots.leases, slots.number
            longest = to_us(MAX_LEASE_SECONDS)
            empty, _ = adopt(self._definition(ref), None, 0)
            self._states[ref] = tuple(
                replace(one, leases=leases, number=number, longest=longest)
                if isinstance(one, Slots)
                else one
                for one in empty
            )
            if slots.leases:
                return
        self._used_keys[ref.name].pop(str(ref.key), None)

    def forget_idle(self, now: int) -> None:
        """Forget what no longer matters of the states and pauses that were checked longest ago.

        To be called with each operation: a server does the same by the expiry of its keys.
        """
        for _ in range(min(_CHECKED_PER_CALL, len(self._states))):
            ref, states = self._states.popitem(last=False)
            if self._matter(ref, states, now):
                self._states[ref] = states
                continue
            numbers = [state.number for state in states if isinstance(state, Slots)]
            self._last_slot = max(self._last_slot, *numbers, 0)
        for _ in range(min(_CHECKED_PER_CALL, len(self._pauses))):
            ref, pause = self._pauses.popitem(last=False)
            if pause.follow_clock(now).until > now:
                self._pauses[ref] = pause
        self._refusals.forget_over(now)

    def _matter(self, ref: LimitRef, states: States, now: int) -> bool:
        definition = self._find_definition(ref)
        if definition is None:
            return any(state.in_use(now) for state in states)
        adopted, is_changed = adopt(definition, states, now)
        pairs = zip(adopted, definition.limits, strict=True)
        return is_changed or any(state.matters(limit, now) for state, limit in pairs)

    def _find_definition(self, ref: LimitRef) -> Definition | None:
        own = self._definitions.get(ref)
        return own or self._definitions.get(LimitRef(ref.name, None))

    def _definition(self, ref: LimitRef) -> Definition:
        definition = self._find_definition(ref)
        if definition is None:
            advice = nearest(ref.name, self.names())
            raise UnknownLimitError(f"limit {shown(ref.name)} is not defined; {advice}")
        return definition

    def _check(
        self, ref: LimitRef, cost: int, now: int, max_delay: int | None = None
    ) -> list[LimitCheck]:
        """Return the limits of a name and key as they are now."""
        for paused in {LimitRef(ref.name, None), ref} & self._pauses.keys():
            self._pauses[paused] = self._pauses[paused].follow_clock(now)
        definition, before = self._definition(ref), self._states.get(ref)
        states, changed = adopt(definition, before, now)
        if changed:
            self._store(ref, states, now)
        if before is None:  # so that no number of a lease recurs
            states = tuple(
                replace(state, number=self._last_slot) if isinstance(state, Slots) else state
                for state in states
            )
        end = self.ends.get(ref if ref in self._definitions else LimitRef(ref.name, None))
        ends_in = None if end is None else end - now
        return [
            LimitCheck(ref, limit, state, cost, max_delay, ends_in)
            for limit, state in zip(definition.limits, states, strict=True)
        ]

    def _decide(self, checks: Sequence[LimitCheck], now: int, *, take: bool = True) -> Decision:
        decision, after, self.refusing = decide(checks, now, take=take)
        if decision and take:
            for ref in dict.fromkeys(check.ref for check in after):
                self._store(ref, tuple(check.state for check in after if check.ref == ref), now)
        pause = self._pause_left(self.refusing, now) if self.refusing else 0
        return decision.with_pause(pause_to_seconds(pause)) if pause else decision

    def _block(self, checks: Sequence[LimitCheck], now: int) -> list[LimitCheck]:
        """Return the limits with the time for which a pause or the cap on keys blocks them."""
        capped = self._key_cap_waits(checks, now)
        return [
            check._replace(blocked=max(self._pause_left(check.ref, now), capped.get(check.ref, 0)))
            for check in checks
        ]

    def _pause_left(self, ref: LimitRef, now: int) -> int:
        """Return the microseconds for which a name, or this key of it, is paused."""
        paused = {LimitRef(ref.name, None), ref} & self._pauses.keys()
        return max([0, *(self._pauses[one].until - now for one in paused)])

    def _key_cap_waits(self, checks: Sequence[LimitCheck], now: int) -> dict[LimitRef, int]:
        """Return the keys that ``max-keys`` excludes, and microseconds until one may be used."""
        new: Counter[str] = Counter()
        waits = {}
        for ref in dict.fromkeys(check.ref for check in checks):
            most, used = self._max_keys(ref), self._used_keys[ref.name]
            if ref.key is None or most is None or used.get(ref.key, 0) > now:
                continue
            if any(check.remaining_and_reset(now)[1] for check in checks if check.ref == ref):
                continue
            new[ref.name] += 1
            if new[ref.name] > most:
                raise too_many_keys_error(ref.name, most)
            ends = sorted(end for end in used.values() if end > now)
            excess = len(ends) + new[ref.name] - most
            waits[ref] = ends[excess - 1] - now if excess > 0 else 0
        return waits

    def _max_keys(self, ref: LimitRef) -> int | None:
        return find_strictest(limit.max_keys for limit in self._definition(ref).limits)

    def _store(self, ref: LimitRef, states: States, now: int) -> None:
        """Store a state, and for the cap on keys until when its key is in use."""
        self._states[ref] = states
        if ref.key is not None and self._max_keys(ref):
            pairs = zip(states, self._definition(ref).limits, strict=True)
            until = now + max(state.remaining_and_reset(limit, now)[1] for state, limit in pairs)
            used = {key: end for key, end in self._used_keys[ref.name].items() if end > now}
            self._used_keys[ref.name] = {**used, ref.key: until}
