"""Limits in the memory of one process, decided as on the server. Twin: ``decision.lua``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.definition import Definition, States, adopt
from celery_throttle.algorithms.key_cap import KeyCap
from celery_throttle.algorithms.meters import LeakyQueue
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import Mark, State, is_ahead
from celery_throttle.errors import LimitValueError, UnknownLimitError, shown
from celery_throttle.limits.cost import MILLION, Cost, to_millionths, to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import ENDLESS_US, MICROSECONDS, pause_to_seconds, to_us
from celery_throttle.limits.feedback import DEFAULT_STOP_SECONDS, Heard
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import (
    LimitsLike,
    has_slots,
    parse_limits,
    too_many_keys_error,
)

#: The largest actual cost of a reservation that counts; a server is sent no larger one.
_MAX_ACTUAL = (MAX_UNITS + 1) * MILLION


class LimitCheck(NamedTuple):
    """One limit of a name and key at the time of a decision, and the requested cost."""

    ref: LimitRef
    limit: Limit
    state: State
    cost: int

    def delay(self, now: int) -> int:
        """Return the microseconds until a request that is admitted now may start."""
        return self.state.delay(now) if isinstance(self.state, LeakyQueue) else 0

    def commit(self, now: int, delay: int) -> LimitCheck:
        """Take the cost. The lease of a slot begins with the start of its holder."""
        at = now + delay if isinstance(self.state, Slots) else now
        return self._replace(state=self.state.take(self.limit, self.cost, now, at))


class Pause(NamedTuple):
    """A pause of a name, or of one key of it. Twin: ``pauses.lua``.

    Attributes:
        until: when it ends, in microseconds.
        written: when it was written.
    """

    until: int
    written: int

    def follow_clock(self, now: int) -> Pause:
        """Return the pause with the same time left, if the clock was set back."""
        if not is_ahead(self.written, now):
            return self
        return Pause(self.until - self.written + now, now)


class LocalTake(NamedTuple):
    """A take: the cost, when its definition came into force, and the mark of each limit."""

    cost: int
    since: int
    marks: tuple[Mark, ...]


#: Takes to be settled, or slots to be released.
LocalReservation = Mapping[LimitRef, LocalTake]


class LocalLimits:
    """Limits in the memory of one process. They decide as the server does.

    Not thread-safe. The state of every key that was used is kept.

    Args:
        limits: name to limits, as text or :class:`Limit`, one or several.
    """

    def __init__(self, limits: Mapping[str, LimitsLike] | None = None) -> None:
        self._definitions: dict[LimitRef, Definition] = {}
        self._states: dict[LimitRef, States] = {}
        self._key_caps: defaultdict[str, KeyCap] = defaultdict(KeyCap)
        #: Pauses of names, and of single keys of them.
        self._pauses: dict[LimitRef, Pause] = {}
        for name, written in (limits or {}).items():
            self.define(LimitRef(name, None), written, 0)

    def define(self, ref: LimitRef, written: LimitsLike, now: int) -> None:
        """Define the limits of a name, or of one key of it; units in use stay in use."""
        limits = parse_limits(written, ref.name)
        old = self._find_definition(ref)
        if old is None:
            self._definitions[ref] = Definition(limits, now, now, now)
            return
        if any(map(has_slots, limits)) != any(map(has_slots, old.limits)):
            raise LimitValueError(f"limit {ref.name!r} cannot switch between a rate and slots")
        definition = self._definitions[ref] = old.replace_limits(limits, now)
        if ref in self._states:
            states, _ = adopt(definition, self._states[ref], now)
            if states != self._states[ref]:
                self._store(ref, states, now)

    def pause(self, ref: LimitRef, us: int | None, now: int) -> None:
        """Pause a name, or one key of it; None: until it is resumed. Never shortens a pause."""
        until = now + (ENDLESS_US if us is None else us)
        old = self._pauses.get(ref, Pause(until, now)).follow_clock(now)
        self._pauses[ref] = Pause(max(until, old.until), now)

    def resume(self, ref: LimitRef) -> None:
        """Lift the pause of a name, or of one key of it, and do nothing else."""
        self._pauses.pop(ref, None)

    def reset(self, ref: LimitRef) -> None:
        """Clear the state of one name and key, and lift its pause. Slots in use stay in use."""
        self.resume(ref)
        states = self._states.pop(ref, ())
        slots = next((state for state in states if isinstance(state, Slots)), None)
        if slots is not None:
            slots = slots.forget_longest()
            empty, _ = adopt(self._definition(ref), None, 0)
            self._states[ref] = tuple(slots if isinstance(one, Slots) else one for one in empty)
            if slots.leases:
                return
        self._key_caps[ref.name].forget(str(ref.key))

    def use_up(self, ref: LimitRef, now: int) -> None:
        """Take the full burst of one name and key, except slots, as if nothing were in use."""
        definition = self._definition(ref)
        empty, _ = adopt(definition, None, now)
        self._states[ref] = tuple(
            state if isinstance(state, Slots) else state.fill(limit, limit.burst * MILLION, now)
            for state, limit in zip(empty, definition.limits, strict=True)
        )

    def acquire(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Take the cost of each from all its limits, or nothing from any.

        Raises:
            CostError: a cost can never pass.
            UnknownLimitError: a limit is not defined.
        """
        return self._decide(costs, now)

    def peek(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Return the decision of :meth:`acquire`, and take nothing. Costs may be 0."""
        return self._decide(costs, now, take=False)

    def acquire_up_to(self, refs: Iterable[LimitRef], most: Cost, now: int) -> Decision:
        """Take the units that all limits have, at most ``most``; whole units if that is whole."""
        wanted = to_millionths(most, allow_zero=True)
        checks = [check for ref in refs for check in self._check(ref, wanted, now)]
        waits = self._blocking_waits(checks, now)
        granted = min(wanted, *(_remaining(check, waits, now)[0] for check in checks))
        if wanted % MILLION == 0:
            granted -= granted % MILLION
        # If nothing is available, the decision is the refusal of one unit.
        cost = granted or min(wanted, MILLION)
        checks = [check._replace(cost=cost) for check in checks]
        return self._conclude(checks, now, take=wanted > 0)

    def reserve(self, costs: Mapping[LimitRef, Cost], now: int) -> LocalReservation | None:
        """Take an estimate, to :meth:`settle` when the cost is known. None: refused."""
        if not self._decide(costs, now):
            return None
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

    def renew(self, reservation: LocalReservation, lease: int, now: int) -> None:
        """Renew the leases of reserved slots for ``lease`` microseconds from now."""
        self._change_slots(reservation, lambda state, mark: state.renew(mark, lease, now))
        for ref in reservation:
            for state in self._states[ref]:
                if isinstance(state, Slots) and state.leases:
                    self._key_caps[ref.name].renew(str(ref.key), state.leases[-1].until)

    def release(self, reservation: LocalReservation) -> None:
        """Release reserved slots."""
        self._change_slots(reservation, lambda state, mark: state.release(mark))

    def _change_slots(
        self, reservation: LocalReservation, change: Callable[[Slots, Mark], Slots]
    ) -> None:
        for ref, take in reservation.items():
            states = self._states.get(ref, ())
            marks = dict(zip(states, take.marks, strict=False))
            self._states[ref] = tuple(
                change(state, marks[state]) if isinstance(state, Slots) else state
                for state in states
            )

    def learn(self, refs: Iterable[LimitRef], heard: Heard, now: int) -> int:
        """Apply feedback; return the microseconds for which all of the limits must stop.

        If the API says that less of its quota is left than of a limit, the difference counts as
        taken by another client.
        """
        took, stop = to_us(heard.took), 0
        for ref in refs:
            checks = self._check(ref, 0, now)
            states = []
            for check in checks:
                state, own_stop = check.state, 0
                if isinstance(state, Adaptive):
                    state, own_stop = state.learn(check.limit, now, took, refused=heard.refused)
                stop = max(stop, own_stop)
                states.append(_tighten(check.limit, state, heard.left_of(ref.name), now))
            if any(one is not check.state for one, check in zip(states, checks, strict=True)):
                self._store(ref, tuple(states), now)
            if heard.refused and not any(isinstance(state, Adaptive) for state in states):
                stop = max(stop, to_us(DEFAULT_STOP_SECONDS))
        return stop if heard.stop is None else to_us(heard.stop)

    def _decide(self, costs: Mapping[LimitRef, Cost], now: int, *, take: bool = True) -> Decision:
        if not costs:
            raise LimitValueError("no limit was named; allowed: one or more")
        checks: list[LimitCheck] = []
        for ref, cost in costs.items():
            for limit in self._definition(ref).limits:
                amount = limit.check_cost(cost, ref.name, allow_zero=not take)
            checks += self._check(ref, amount, now)
        return self._conclude(checks, now, take=take)

    def _conclude(self, checks: Sequence[LimitCheck], now: int, *, take: bool = True) -> Decision:
        blocking = self._blocking_waits(checks, now)
        waits = [
            max(check.state.wait(check.limit, check.cost, now), blocking.get(check.ref, 0))
            for check in checks
        ]
        wait = max(waits)
        delay = max(check.delay(now) for check in checks) if wait == 0 else 0
        if wait == 0 and take:
            checks = [check.commit(now, delay) for check in checks]
            for ref in dict.fromkeys(check.ref for check in checks):
                self._store(ref, tuple(check.state for check in checks if check.ref == ref), now)
        remaining = [_remaining(check, blocking, now) for check in checks]
        units = [amount // MILLION for amount, _ in remaining]
        index = waits.index(wait) if wait else units.index(min(units))
        decision = Decision(
            allowed=wait == 0,
            limit=checks[index].limit.burst,
            remaining=units[index],
            retry_after=wait / MICROSECONDS,
            reset_after=max(reset for _, reset in remaining) / MICROSECONDS,
            bound_by=checks[index].ref.name if wait else None,
            granted=to_units(checks[0].cost) if wait == 0 and take else 0,
            delay=delay / MICROSECONDS,
        )
        pause = self._pause_left(checks[index].ref, now) if wait else 0
        return decision.with_pause(pause_to_seconds(pause)) if pause else decision

    def _pause_left(self, ref: LimitRef, now: int) -> int:
        """Return the microseconds for which a name, or this key of it, is paused."""
        paused = {LimitRef(ref.name, None), ref} & self._pauses.keys()
        return max([0, *(self._pauses[one].until - now for one in paused)])

    def _blocking_waits(self, checks: Sequence[LimitCheck], now: int) -> dict[LimitRef, int]:
        """Return the microseconds for which a pause or the cap on keys blocks any request."""
        capped = self._key_cap_waits(checks, now)
        refs = {check.ref for check in checks}
        waits = {ref: max(self._pause_left(ref, now), capped.get(ref, 0)) for ref in refs}
        return {ref: wait for ref, wait in waits.items() if wait}

    def _key_cap_waits(self, checks: Sequence[LimitCheck], now: int) -> dict[LimitRef, int]:
        """Return the keys that the cap excludes, and microseconds until one may be used."""
        new: Counter[str] = Counter()
        waits = {}
        for ref in dict.fromkeys(check.ref for check in checks):
            most, cap = self._definition(ref).max_keys, self._key_caps[ref.name]
            if ref.key is None or most is None or cap.has(ref.key, now):
                continue
            own = [check for check in checks if check.ref == ref]
            if any(check.state.remaining_and_reset(check.limit, now)[1] for check in own):
                continue
            new[ref.name] += 1
            if new[ref.name] > most:
                raise too_many_keys_error(ref.name, most)
            waits[ref] = cap.wait(new[ref.name], most, now)
        return waits

    def _store(self, ref: LimitRef, states: States, now: int) -> None:
        self._states[ref] = states
        definition = self._definition(ref)
        if ref.key is not None and definition.max_keys:
            pairs = zip(states, definition.limits, strict=True)
            until = now + max(state.remaining_and_reset(limit, now)[1] for state, limit in pairs)
            self._key_caps[ref.name].use(ref.key, until, now)

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
        for paused in {LimitRef(ref.name, None), ref} & self._pauses.keys():
            self._pauses[paused] = self._pauses[paused].follow_clock(now)
        states, changed = adopt(definition, self._states.get(ref), now)
        if changed:
            self._store(ref, states, now)
        return [
            LimitCheck(ref, limit, state, cost)
            for limit, state in zip(definition.limits, states, strict=True)
        ]


def _remaining(check: LimitCheck, blocking: Mapping[LimitRef, int], now: int) -> tuple[int, int]:
    """Return the amount that could pass now, and microseconds until nothing is in use."""
    amount, reset = check.state.remaining_and_reset(check.limit, now)
    wait = blocking.get(check.ref, 0)
    return (0, max(wait, reset)) if wait else (amount, reset)


def _tighten(limit: Limit, state: State, left: int | None, now: int) -> State:
    """Return the state with at most ``left`` units remaining."""
    own, _ = state.remaining_and_reset(limit, now)
    if left is None or isinstance(state, Slots) or own <= left * MILLION:
        return state
    return state.take(limit, own - left * MILLION, now, now)
