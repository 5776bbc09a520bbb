"""All that the server does with limits, in the memory of one process.

To the decisions of :mod:`.local` this adds pauses, caps on keys (``max-keys``), settled
reservations, released slots, and feedback. A limiter without a server decides with it, and the
tests compare the scripts on the server with it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.definition import States, adopt
from celery_throttle.algorithms.key_cap import KeyCap
from celery_throttle.algorithms.local import LimitCheck, LocalLimits, LocalReservation
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import Mark, State, is_ahead
from celery_throttle.limits.cost import MILLION, Cost, to_millionths
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import ENDLESS_US, MICROSECONDS, pause_to_seconds, to_us
from celery_throttle.limits.feedback import DEFAULT_STOP_SECONDS, Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import MAX_LEASE_SECONDS, Limit, Limits
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import LimitsLike, find_strictest, too_many_keys_error

#: The largest actual cost of a reservation that counts; a server is sent no larger one.
_MAX_ACTUAL = (MAX_UNITS + 1) * MILLION


#: States and pauses that :meth:`MemoryLimits.forget_idle` checks: more than one operation adds.
_CHECKED_PER_CALL = 2


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


class MemoryLimits(LocalLimits):
    """Limits in the memory of one process, with all that the server does. Not thread-safe."""

    def __init__(self, limits: Mapping[str, LimitsLike] | None = None) -> None:
        self._key_caps: defaultdict[str, KeyCap] = defaultdict(KeyCap)
        self._pauses: OrderedDict[LimitRef, Pause] = OrderedDict()
        #: The highest number of a lease among the states that were forgotten.
        self._last_slot = 0
        #: When definitions end, in microseconds. The caller removes them then.
        self.ends: dict[LimitRef, int] = {}
        super().__init__(limits)

    def define(self, ref: LimitRef, written: LimitsLike, now: int) -> None:
        before = self._states.get(ref)
        super().define(ref, written, now)
        if self._states.get(ref) != before:
            self._note_use(ref, now)

    def knows(self, name: str) -> bool:
        """Whether a name, or any key of it, is defined."""
        return any(ref.name == name for ref in self._definitions)

    def names(self) -> list[str]:
        """Return the names of all limits that are defined."""
        return list({ref.name: None for ref in self._definitions})

    def limits_of(self, ref: LimitRef) -> Limits | None:
        """Return the limits in force of a name, or of one key of it."""
        definition = self._find_definition(ref)
        return None if definition is None else definition.limits

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
            slots = replace(slots, longest=to_us(MAX_LEASE_SECONDS))
            empty, _ = adopt(self._definition(ref), None, 0)
            self._states[ref] = tuple(slots if isinstance(one, Slots) else one for one in empty)
            if slots.leases:
                return
        self._key_caps[ref.name].forget(str(ref.key))

    def delay(self, refs: Iterable[LimitRef], now: int) -> int:
        """Return the microseconds until a request that is admitted now may start."""
        return max(check.delay(now) for ref in refs for check in self._check(ref, 0, now))

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
                    self._states[ref] = settled
                    self._note_use(ref, now)

    def renew(self, reservation: LocalReservation, lease: int, now: int) -> None:
        super().renew(reservation, lease, now)
        for ref in reservation:
            for state in self._states.get(ref, ()):
                if isinstance(state, Slots) and state.leases:
                    self._key_caps[ref.name].renew(str(ref.key), state.leases[-1].until)

    def release(self, reservation: LocalReservation) -> None:
        """Release reserved slots."""
        self._change_slots(
            reservation,
            lambda state, mark: replace(
                state, leases=tuple(one for one in state.leases if one.number != mark.value)
            ),
        )

    def learn(self, refs: Iterable[LimitRef], feedback: Feedback, now: int) -> int:
        """Apply feedback; return the microseconds for which all of the limits must stop.

        If the API says that less of its quota is left than of a limit, the difference counts as
        taken by another client.
        """
        took, stop = to_us(feedback.took), 0
        for ref in refs:
            checks = self._check(ref, 0, now)
            states = []
            for check in checks:
                state, own_stop = check.state, 0
                if isinstance(state, Adaptive):
                    state, own_stop = state.learn(check.limit, now, took, refused=feedback.refused)
                stop = max(stop, own_stop)
                states.append(_tighten(check.limit, state, feedback.left_of(ref.name), now))
            if any(one is not check.state for one, check in zip(states, checks, strict=True)):
                self._states[ref] = tuple(states)
                self._note_use(ref, now)
            if feedback.refused and not any(isinstance(state, Adaptive) for state in states):
                stop = max(stop, to_us(DEFAULT_STOP_SECONDS))
        return stop if feedback.stop is None else to_us(feedback.stop)

    def _conclude(self, checks: Sequence[LimitCheck], now: int, *, take: bool = True) -> Decision:
        blocking = self._blocking_waits(checks, now)
        if not blocking:
            decision = super()._conclude(checks, now, take=take)
            for ref in {check.ref for check in checks if decision and take}:
                self._note_use(ref, now)
            return decision
        waits = [max(self._wait(check, now), blocking.get(check.ref, 0)) for check in checks]
        wait = max(waits)
        bottleneck = checks[waits.index(wait)]
        self.refusing = bottleneck.ref
        decision = Decision(
            allowed=False,
            burst=bottleneck.limit.burst,
            remaining=_remaining(bottleneck, blocking, now)[0] // MILLION,
            retry_after=wait / MICROSECONDS,
            reset_after=max(_remaining(one, blocking, now)[1] for one in checks) / MICROSECONDS,
            limited_by=bottleneck.ref.name,
        )
        pause = self._pause_left(bottleneck.ref, now)
        return decision.with_pause(pause_to_seconds(pause)) if pause else decision

    def _wait(self, check: LimitCheck, now: int) -> int:
        """Return the microseconds to wait for one of the limits, or for others in its place."""
        wait, ref = super()._wait(check, now), check.ref
        end = self.ends.get(ref if ref in self._definitions else LimitRef(ref.name, None))
        return wait if end is None else min(wait, end - now)

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
            most, cap = self._max_keys(ref), self._key_caps[ref.name]
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

    def _max_keys(self, ref: LimitRef) -> int | None:
        return find_strictest(limit.max_keys for limit in self._definition(ref).limits)

    def _note_use(self, ref: LimitRef, now: int) -> None:
        """Record for the cap on keys that the state of a key was written."""
        if ref.key is not None and self._max_keys(ref):
            pairs = zip(self._states[ref], self._definition(ref).limits, strict=True)
            until = now + max(state.remaining_and_reset(limit, now)[1] for state, limit in pairs)
            self._key_caps[ref.name].use(ref.key, until, now)

    def _check(self, ref: LimitRef, cost: int, now: int) -> list[LimitCheck]:
        for paused in {LimitRef(ref.name, None), ref} & self._pauses.keys():
            self._pauses[paused] = self._pauses[paused].follow_clock(now)
        before = self._states.get(ref)
        checks = super()._check(ref, cost, now)
        if self._states.get(ref) is not before:
            self._note_use(ref, now)
        if before is None:
            return [self._with_new_numbers(check) for check in checks]
        return checks

    def _with_new_numbers(self, check: LimitCheck) -> LimitCheck:
        """Return the check of a limit that has no state, in which no number of a lease recurs."""
        if isinstance(check.state, Slots):
            return check._replace(state=replace(check.state, number=self._last_slot))
        return check

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

    def _matter(self, ref: LimitRef, states: States, now: int) -> bool:
        definition = self._find_definition(ref)
        if definition is None:
            return any(state.in_use(now) for state in states)
        adopted, is_changed = adopt(definition, states, now)
        pairs = zip(adopted, definition.limits, strict=True)
        return is_changed or any(state.matters(limit, now) for state, limit in pairs)


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
