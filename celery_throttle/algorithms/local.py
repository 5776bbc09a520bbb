"""Limits in the memory of one process, decided as on the server. Twin: ``decision.lua``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.definition import Definition, States, current
from celery_throttle.algorithms.key_cap import Crowd
from celery_throttle.algorithms.meters import LeakyQueue
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import Mark, State, is_ahead
from celery_throttle.errors import LimitValueError, UnknownLimitError, shown
from celery_throttle.limits.cost import MILLION, Cost, in_units, millionths
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import UNTOLD, Heard
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Written, has_slots, read, too_many_keys
from celery_throttle.operations.changes import ENDLESS, seconds_paused

_MICROSECONDS = 1_000_000

#: What a reservation was worth counts up to here: as much as is sent to a server.
_MOST = (MAX_UNITS + 1) * MILLION


class Look(NamedTuple):
    """One limit of a name and key at the time of a decision, and the cost that is asked of it."""

    ref: LimitRef
    limit: Limit
    state: State
    cost: int

    def delay(self, now: int) -> int:
        """Microseconds until what is taken now may start."""
        return self.state.delay(now) if isinstance(self.state, LeakyQueue) else 0

    def taken(self, now: int, delay: int) -> Look:
        """The same once the cost is taken. A slot is held from when its holder begins."""
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
        """Return the pause; it lasts as long from now on as before, if the clock was set back."""
        if not is_ahead(self.written, now):
            return self
        return Pause(self.until - self.written + now, now)


class Take(NamedTuple):
    """What was taken: the cost, the definition's time, and of each limit the mark."""

    cost: int
    since: int
    marks: tuple[Mark, ...]


Reservation = Mapping[LimitRef, Take]


class Local:
    """Limits in the memory of one process: decides as the server does, for tests and when alone.

    Not for several threads at once. It keeps the state of every key it has seen.

    Args:
        limits: Name to limit, as text or :class:`Limit`, or to several.
    """

    def __init__(self, limits: Mapping[str, Written] | None = None) -> None:
        self._definitions: dict[LimitRef, Definition] = {}
        self._states: dict[LimitRef, States] = {}
        self._crowds: defaultdict[str, Crowd] = defaultdict(Crowd)
        #: Of names, and of single keys of them.
        self._pauses: dict[LimitRef, Pause] = {}
        for name, written in (limits or {}).items():
            self.define(LimitRef(name, None), written, 0)

    def define(self, ref: LimitRef, written: Written, now: int) -> None:
        """Define the limits of a name, or of one key of it; units in use stay in use."""
        new = read(written, ref.name)
        old = self._in_force(ref)
        if old is None:
            self._definitions[ref] = Definition(new, now, now, now)
            return
        if any(map(has_slots, new)) != any(map(has_slots, old.limits)):
            raise LimitValueError(f"limit {ref.name!r} cannot be given slots, or have them taken")
        definition = self._definitions[ref] = old.followed_by(new, now)
        if ref in self._states:
            states, _ = current(definition, self._states[ref], now)
            if states != self._states[ref]:
                self._keep(ref, states, now)

    def pause(self, ref: LimitRef, us: int | None, now: int) -> None:
        """Stop a name, or one key of it; None until it is resumed. Never shortens a pause."""
        until = now + (ENDLESS if us is None else us)
        before = self._pauses.get(ref, Pause(until, now)).follow_clock(now)
        self._pauses[ref] = Pause(max(until, before.until), now)

    def resume(self, ref: LimitRef) -> None:
        """Lift the pause of a name, or of one key of it, and nothing else."""
        self._pauses.pop(ref, None)

    def reset(self, ref: LimitRef) -> None:
        """Forget what was used of one name and key, and its pause. Slots in use stay in use."""
        self.resume(ref)
        states = self._states.pop(ref, ())
        if any(isinstance(state, Slots) for state in states):
            definition = self._defined(ref)
            nothing, _ = current(definition, None, 0)
            held = next(
                state for state in states if isinstance(state, Slots)
            ).with_longest_unknown()
            self._states[ref] = tuple(held if isinstance(one, Slots) else one for one in nothing)
            if held.leases:
                return
        self._crowds[ref.name].forget(str(ref.key))

    def use_up(self, ref: LimitRef, now: int) -> None:
        """Take all there is of one name and key, as if nothing had been in use. Slots aside."""
        definition = self._defined(ref)
        nothing, _ = current(definition, None, now)
        self._states[ref] = tuple(
            state if isinstance(state, Slots) else state.fill(limit, limit.burst * MILLION, now)
            for state, limit in zip(nothing, definition.limits, strict=True)
        )

    def acquire(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Take the cost of each from all its limits, or nothing from any.

        Raises:
            CostError: a cost can never pass.
            UnknownLimitError: a limit is not defined.
        """
        return self._decide(costs, now)

    def peek(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Return the decision :meth:`acquire` would give, with nothing taken. Costs may be 0."""
        return self._decide(costs, now, take=False)

    def acquire_up_to(self, refs: Iterable[LimitRef], most: Cost, now: int) -> Decision:
        """Take what all limits have, at most so many units; whole units, if that is whole."""
        wanted = millionths(most, allow_zero=True)
        looks = [look for ref in refs for look in self._look(ref, wanted, now)]
        stops = self._stops(looks, self._full(looks, now), now)
        granted = min(wanted, *(self._left(look, stops, now)[0] for look in looks))
        if wanted % MILLION == 0:
            granted -= granted % MILLION
        # Nothing to be had is a refusal of one unit.
        least = min(wanted, MILLION)
        looks = [look._replace(cost=granted or least) for look in looks]
        return self._decided(looks, now, take=wanted > 0)

    def reserve(self, costs: Mapping[LimitRef, Cost], now: int) -> Reservation | None:
        """Take an estimate, to :meth:`settle` it when the cost is known. None: refused."""
        if not self._decide(costs, now):
            return None
        return {
            ref: Take(
                millionths(cost),
                self._states[ref][0].since,
                tuple(state.mark() for state in self._states[ref]),
            )
            for ref, cost in costs.items()
        }

    def settle(self, reservation: Reservation, actual: Mapping[LimitRef, Cost], now: int) -> None:
        """Give back what was reserved too much, or owe what was reserved too little.

        If the limits have changed since, nothing is given back, and what is owed counts as taken
        now.
        """
        for ref, take in reservation.items():
            worth = min(millionths(actual[ref], allow_zero=True), _MOST)
            looks = self._look(ref, 0, now)
            same = looks[0].state.since == take.since and len(looks) == len(take.marks)
            if worth > take.cost or (worth < take.cost and same):
                marks = take.marks if same else (Mark(0),) * len(looks)
                settled = tuple(
                    look.state.settle(look.limit, mark, take.cost, worth, now)
                    for look, mark in zip(looks, marks, strict=True)
                )
                if any(one is not look.state for one, look in zip(settled, looks, strict=True)):
                    self._keep(ref, settled, now)

    def renew(self, reservation: Reservation, lease: int, now: int) -> None:
        """Let slots that were reserved go on for ``lease`` microseconds from now."""
        self._each_slots(reservation, lambda state, mark: state.renew(mark, lease, now))
        for ref in reservation:
            for state in self._states[ref]:
                if isinstance(state, Slots) and state.leases:
                    self._crowds[ref.name].renew(str(ref.key), state.leases[-1].until)

    def release(self, reservation: Reservation) -> None:
        """Give slots that were reserved back."""
        self._each_slots(reservation, lambda state, mark: state.release(mark))

    def _each_slots(self, reservation: Reservation, change: Callable[[Slots, Mark], Slots]) -> None:
        for ref, take in reservation.items():
            states = self._states.get(ref, ())
            marks = dict(zip(states, take.marks, strict=False))
            self._states[ref] = tuple(
                change(state, marks[state]) if isinstance(state, Slots) else state
                for state in states
            )

    def learn(self, refs: Iterable[LimitRef], heard: Heard, now: int) -> int:
        """Learn from an answer; gives microseconds for which all of them are to stop.

        Where the API says that less is left of its quota than here, it is as if somebody else had
        taken the difference.
        """
        took, rest = round(heard.took * _MICROSECONDS), 0
        for ref in refs:
            looks = self._look(ref, 0, now)
            states = []
            for look in looks:
                state, own = look.state, 0
                if isinstance(state, Adaptive):
                    state, own = state.answered(look.limit, now, took, refused=heard.refused)
                rest = max(rest, own)
                states.append(_tightened(look.limit, state, heard.left_of(ref.name), now))
            if any(one is not look.state for one, look in zip(states, looks, strict=True)):
                self._keep(ref, tuple(states), now)
            if heard.refused and not any(isinstance(state, Adaptive) for state in states):
                rest = max(rest, round(UNTOLD * _MICROSECONDS))
        return rest if heard.stop is None else round(heard.stop * _MICROSECONDS)

    def _decide(self, costs: Mapping[LimitRef, Cost], now: int, *, take: bool = True) -> Decision:
        if not costs:
            raise LimitValueError("no limit was named; allowed: one or more")
        looks: list[Look] = []
        for ref, cost in costs.items():
            for limit in self._defined(ref).limits:
                amount = limit.check_cost(cost, ref.name, allow_zero=not take)
            looks += self._look(ref, amount, now)
        return self._decided(looks, now, take=take)

    def _decided(self, looks: Sequence[Look], now: int, *, take: bool = True) -> Decision:
        stops = self._stops(looks, self._full(looks, now), now)
        waits = [
            max(look.state.wait(look.limit, look.cost, now), stops.get(look.ref, 0))
            for look in looks
        ]
        wait = max(waits)
        delay = max(look.delay(now) for look in looks) if wait == 0 else 0
        if wait == 0 and take:
            looks = [look.taken(now, delay) for look in looks]
            for ref in dict.fromkeys(look.ref for look in looks):
                self._keep(ref, tuple(look.state for look in looks if look.ref == ref), now)
        left = [self._left(look, stops, now) for look in looks]
        units = [amount // MILLION for amount, _ in left]
        told = waits.index(wait) if wait else units.index(min(units))
        decision = Decision(
            allowed=wait == 0,
            limit=looks[told].limit.burst,
            remaining=units[told],
            retry_after=wait / _MICROSECONDS,
            reset_after=max(reset for _, reset in left) / _MICROSECONDS,
            bound_by=looks[told].ref.name if wait else None,
            granted=in_units(looks[0].cost) if wait == 0 and take else 0,
            delay=delay / _MICROSECONDS,
        )
        paused = self._paused(looks[told].ref, now) if wait else 0
        return decision.while_paused(seconds_paused(paused)) if paused else decision

    def _paused(self, ref: LimitRef, now: int) -> int:
        """Microseconds for which a name, or this key of it, is paused."""
        both = {LimitRef(ref.name, None), ref} & self._pauses.keys()
        return max([0, *(self._pauses[one].until - now for one in both)])

    def _stops(
        self, looks: Iterable[Look], full: Mapping[LimitRef, int], now: int
    ) -> dict[LimitRef, int]:
        """What lets nothing pass, and for how long (us): a pause, or no room for the key."""
        refs = {look.ref for look in looks}
        waits = {ref: max(self._paused(ref, now), full.get(ref, 0)) for ref in refs}
        return {ref: wait for ref, wait in waits.items() if wait}

    def _full(self, looks: Sequence[Look], now: int) -> dict[LimitRef, int]:
        """The keys for which there is no room, and microseconds until the earliest is forgotten."""
        new: Counter[str] = Counter()
        full = {}
        for ref in dict.fromkeys(look.ref for look in looks):
            most, crowd = self._defined(ref).max_keys, self._crowds[ref.name]
            if ref.key is None or most is None or crowd.has(ref.key, now):
                continue
            if any(look.state.left(look.limit, now)[1] for look in looks if look.ref == ref):
                continue
            new[ref.name] += 1
            if new[ref.name] > most:
                raise too_many_keys(ref.name, most)
            full[ref] = crowd.wait(new[ref.name], most, now)
        return {ref: wait for ref, wait in full.items() if wait}

    @staticmethod
    def _left(look: Look, stops: Mapping[LimitRef, int], now: int) -> tuple[int, int]:
        amount, reset = look.state.left(look.limit, now)
        wait = stops.get(look.ref, 0)
        return (0, max(wait, reset)) if wait else (amount, reset)

    def _keep(self, ref: LimitRef, states: States, now: int) -> None:
        self._states[ref] = states
        definition = self._defined(ref)
        if ref.key is not None and definition.max_keys:
            both = zip(states, definition.limits, strict=True)
            until = now + max(state.left(limit, now)[1] for state, limit in both)
            self._crowds[ref.name].use(ref.key, until, now)

    def _in_force(self, ref: LimitRef) -> Definition | None:
        own = self._definitions.get(ref)
        return own or self._definitions.get(LimitRef(ref.name, None))

    def _defined(self, ref: LimitRef) -> Definition:
        definition = self._in_force(ref)
        if definition is None:
            known = ", ".join(sorted({repr(known.name) for known in self._definitions})) or "none"
            raise UnknownLimitError(f"limit {shown(ref.name)} is not defined; allowed: {known}")
        return definition

    def _look(self, ref: LimitRef, cost: int, now: int) -> list[Look]:
        definition = self._defined(ref)
        for paused in {LimitRef(ref.name, None), ref} & self._pauses.keys():
            self._pauses[paused] = self._pauses[paused].follow_clock(now)
        states, keep = current(definition, self._states.get(ref), now)
        if keep:
            self._keep(ref, states, now)
        return [
            Look(ref, limit, state, cost)
            for limit, state in zip(definition.limits, states, strict=True)
        ]


def _tightened(limit: Limit, state: State, left: int | None, now: int) -> State:
    own, _ = state.left(limit, now)
    if left is None or isinstance(state, Slots) or own <= left * MILLION:
        return state
    return state.take(limit, own - left * MILLION, now, now)
