"""What changes limits: register, define, pause, resume, reset. All are plans, see ``plans.py``."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from celery_throttle.errors import LimitValueError, UnknownLimitError, shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import check_whole
from celery_throttle.limits.requirement import Written, has_slots, read
from celery_throttle.store import definitions
from celery_throttle.store.keys import FAN_OUT, Keys
from celery_throttle.store.script import Argument, Call, script

T = TypeVar("T")

MICROSECONDS = 1_000_000

#: Seconds that a wait or a pause may last at most: some thirty years.
_LONGEST = 1e9

#: Microseconds of a pause that lasts until it is resumed. It is kept as any pause is, under a key
#: that expires; a wait of more than half of it is the wait for a resume.
ENDLESS = 10**15

#: How many turns a line may have for one of another.
MAX_WEIGHT = 100

#: The limits of one name: all of them have to allow.
Limits = tuple[Limit, ...]


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


@dataclass(frozen=True, slots=True)
class Changes:
    """What changes the limits of one prefix.

    Attributes:
        limits: those the code defines; registered when the server does not know them.
        keys: the names in Redis.
        clock: a time of the caller's own, or None for the server's.
    """

    limits: Mapping[str, Limits]
    keys: Keys
    clock: Clock | None = None

    def now(self) -> Argument:
        """The time as the scripts take it."""
        return "" if self.clock is None else self.clock.now

    def register(self, limits: Mapping[str, Limits], now: int | None = None) -> Plan[None]:
        """Put limits of the code in force, save those that were defined at run time.

        ``now``: the server's time in microseconds, if it is known.
        """
        refs = [LimitRef(name, None) for name in limits]
        for changed in (yield from self._define("code", refs, list(limits.values()), now)):
            yield from self._touch(changed.name)

    def register_missing(self, refs: Sequence[LimitRef], now: int | None = None) -> Plan[None]:
        """Register those of the code's limits that a call needs, and windows that have run out.

        ``now``: as of :meth:`register`.
        """
        names = {ref.name for ref in refs} & set(self.limits)
        yield from self.register({name: self.limits[name] for name in names}, now)
        wholes = [LimitRef(name, None) for name in dict.fromkeys(ref.name for ref in refs)]
        every = [*wholes, *(ref for ref in refs if ref.key is not None)]
        texts: list[bytes | None] = yield Call(
            script("read_definitions"), [self.keys.limits], [self.keys.field(ref) for ref in every]
        )
        found = [(ref, packed) for ref, packed in zip(every, texts, strict=True) if packed]
        limits = [definitions.unpack(packed) for _, packed in found]
        yield from self._define("windows", [ref for ref, _ in found], limits, now)

    def define(
        self, ref: LimitRef, written: Written | None, weight: int | None = None
    ) -> Plan[None]:
        """Define the limits of a name, or of one key of it, at run time, its weight, or both.

        Raises:
            LimitError: they are wrong, or would give slots to a name without, or the reverse.
            UnknownLimitError: a key of no limit, or a weight of one.
        """
        if written is None and weight is None:
            raise LimitValueError(
                f"nothing is said of {self.keys.field(ref)!r}; allowed: a limit, a weight, or both"
            )
        if weight is not None:
            check_whole(f"{self.keys.field(ref)!r}: weight", weight, MAX_WEIGHT)
        if written is None or ref.key is not None:
            yield from self._check_known(ref)
        if written is not None:
            limits = read(written, ref.name)
            known = self.limits.get(ref.name, limits)
            if any(map(has_slots, limits)) != any(map(has_slots, known)):
                raise _other_sort(ref.name, limits)
            yield from self._define("set", [ref], [limits])
            yield from self._touch(ref.name)
        if weight is not None:
            yield self._weigh(ref, weight)

    def undefine(self, ref: LimitRef) -> Plan[None]:
        """Take back what was defined at run time of a name, or of one key of it.

        Raises:
            UnknownLimitError: there is no limit of the name.
        """
        yield from self._check_known(ref)
        if ref.key is None and ref.name in self.limits:
            yield from self._define("reset", [ref], [self.limits[ref.name]])
        else:
            yield from self._define("drop", [ref], [None])
        yield self._weigh(ref, "")
        yield from self._touch(ref.name)

    def _weigh(self, ref: LimitRef, weight: Argument) -> Call:
        return Call(script("set_weight"), [self.keys.limits], [self.keys.weight(ref), weight])

    def _check_known(self, ref: LimitRef) -> Plan[None]:
        """Raise UnknownLimitError if neither the code nor the server has a limit of the name."""
        if ref.name not in self.limits:
            fields = [self.keys.field(LimitRef(ref.name, None)), self.keys.field(ref)]
            if not any((yield Call(script("read_definitions"), [self.keys.limits], fields))):
                raise unknown_limit(ref.name, self.limits)

    def _define(
        self,
        mode: str,
        refs: Sequence[LimitRef],
        limits: Sequence[Limits | None],
        now: int | None = None,
    ) -> Plan[list[LimitRef]]:
        """Run ``define.lua``; give those that were in force and have changed."""
        if not refs:
            return []
        if now is None:
            # It need not be the server's: the windows around it are told, and asked for if missing.
            now = self.clock.now if self.clock else int(time.time() * MICROSECONDS)
        names = [self.keys.limits]
        args = [self.now(), mode]
        for ref, own in zip(refs, limits, strict=True):
            names += (self.keys.state(ref), self.keys.entries(ref))
            crowd = self.keys.crowd(ref.name)
            packed = b"" if own is None else definitions.pack(own, now, crowd)
            args += (ref.name, self.keys.field(ref), packed)
        done, *indexes = yield Call(script("define"), names, args)
        if not done:
            refused = indexes[0] - 1
            raise _other_sort(refs[refused].name, limits[refused])
        return [refs[index - 1] for index in indexes]

    def _touch(self, name: str, cursor: bytes = b"") -> Plan[None]:
        """Let what waits at a limit be looked at again, in steps that do not block the server.

        ``cursor``: where a script went on to that has looked at the first of it.
        """
        while cursor != b"0":
            cursor = yield Call(
                script("recheck_waiters"), [self.keys.waited(name)], [self.now(), cursor or "0"]
            )

    def pause(self, ref: LimitRef, seconds: float | None, record: str | None = None) -> Plan[float]:
        """Stop a limit or one key of it, until it is resumed if ``seconds`` is None.

        Gives the seconds it is now paused. With the record of a fan-out, whose key it is: below
        zero if nothing is known of that.
        """
        us = ENDLESS if seconds is None else to_us(check_wait(seconds, "a pause"))
        yield from self._check_known(ref)
        names = [self.keys.pause(ref)] if record is None else [self.keys.pause(ref), record]
        paused: int = yield Call(script("pause"), names, [self.now(), us])
        return seconds_paused(paused)

    def resume(self, ref: LimitRef) -> Plan[bool]:
        """Lift the pause of a limit or of one key of it; gives whether there was one.

        Tasks that wait are looked at again even if there was none: so a call that was cut short is
        finished by the next.
        """
        yield from self._check_known(ref)
        waits = self.keys.waited(ref.name) if ref.key is None else self.keys.waits(ref)
        names = [self.keys.pause(ref), waits]
        lifted, cursor = yield Call(script("resume"), names, [self.now(), int(ref.key is not None)])
        yield from self._touch(ref.name, cursor)
        return bool(lifted)

    def reset(self, ref: LimitRef) -> Plan[None]:
        """Forget what was used of a limit or one key of it, and lift its pause."""
        yield from self._check_known(ref)
        keys = self.keys
        names = [keys.state(ref), keys.pause(ref), keys.entries(ref), keys.crowd(ref.name)]
        cursor = yield Call(script("reset"), [*names, keys.waited(ref.name)], [self.now()])
        yield from self._touch(ref.name, cursor)


def _other_sort(name: str, limits: Limits | None) -> LimitValueError:
    texts = [*map(str, limits or ())]
    written = shown(texts[0] if len(texts) == 1 else texts)
    return LimitValueError(
        f"limit {name!r} cannot become {written}: workers know from the code whether it has "
        "slots; allowed: limits that have them if the ones before do"
    )


def to_us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * MICROSECONDS)


def seconds_paused(us: int) -> float:
    """For how long a limit is paused: infinity until it is resumed."""
    return math.inf if is_endless(us) else us / MICROSECONDS


def seconds_until(us: int) -> float | None:
    """A wait, None if it lasts until a pause is resumed."""
    return None if is_endless(us) else us / MICROSECONDS


def is_endless(us: int) -> bool:
    """Whether a wait lasts until a pause is resumed."""
    return us > ENDLESS // 2


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


def unknown_limit(name: str, known: Iterable[str]) -> UnknownLimitError:
    """The error for a name that nobody has defined."""
    names = ", ".join(repr(one) for one in sorted(known) if one != FAN_OUT) or "none"
    return UnknownLimitError(f"limit {shown(name)} is not defined; this process knows: {names}")
