"""Plans that change limits: register, define, pause, resume and reset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_throttle.errors import LimitValueError
from celery_throttle.limits.duration import (
    ENDLESS_US,
    check_duration,
    pause_to_seconds,
    to_us,
)
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import (
    LimitsLike,
    Requirement,
    check_same_kind,
    check_weight,
    parse_limits,
    slots_error,
)
from celery_throttle.operations.plan import LimitPlans, Plan
from celery_throttle.operations.replies import ReplyStatus, check_reply, unknown_limit_error
from celery_throttle.store import definitions
from celery_throttle.store.script import Argument, Call, script

#: The status of a reply about a limit that the server does not know, in both reply formats.
_UNKNOWN = (ReplyStatus.UNKNOWN, b"unknown")


class DefinePlans(LimitPlans):
    """Plans that change limits."""

    __slots__ = ()

    def register(self, limits: Mapping[str, Limits], now: int | None = None) -> Plan[None]:
        """Put limits of the code in force, except those that were defined at run time.

        ``now``: the server's time in microseconds, if it is known.
        """
        refs = [LimitRef(name, None) for name in limits]
        for changed in (yield from self._define("code", refs, list(limits.values()), now)):
            yield from self._recheck_waiters(changed.name)

    def register_missing(self, refs: Sequence[LimitRef], now: int | None = None) -> Plan[None]:
        """Register those of the code's limits that a call needs, and renew calendar windows.

        ``now``: as for :meth:`register`.
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

    def call_registered(self, call: Call, refs: Sequence[LimitRef]) -> Plan[Any]:
        """Run a call. If the server does not know one of its limits, register it and repeat.

        The reply of such a call is the status, the index of the limit, and the server's time.
        """
        reply = yield call
        if reply[0] in _UNKNOWN:
            yield from self.register_missing(refs, int(reply[2]))
            reply = yield call
        return reply

    def check(self, reply: Sequence[int], requirements: Sequence[Requirement]) -> None:
        """Raise the error of a reply to a call with these requirements, if it is one."""
        check_reply(reply, requirements, self.limits)

    def define(
        self, ref: LimitRef, written: LimitsLike | None, weight: int | None = None
    ) -> Plan[None]:
        """Define the limits of a name, or of one key of it, at run time, its weight, or both.

        Raises:
            LimitError: they are wrong, or switch between a rate and slots.
            UnknownLimitError: a key, or a weight, of a limit that is not defined.
        """
        check_definition(self.keys.field(ref), written, weight)
        if written is None or ref.key is not None:
            yield from self.check_known(ref)
        if written is not None:
            limits = parse_limits(written, ref.name)
            check_same_kind(ref.name, limits, self.limits.get(ref.name, limits))
            yield from self._define("set", [ref], [limits])
            yield from self._recheck_waiters(ref.name)
        if weight is not None:
            yield self._weight_call(ref, weight)

    def undefine(self, ref: LimitRef) -> Plan[None]:
        """Remove what was defined at run time for a name or key. Raises as :meth:`check_known`."""
        yield from self.check_known(ref)
        if ref.key is None and ref.name in self.limits:
            yield from self._define("reset", [ref], [self.limits[ref.name]])
        else:
            yield from self._define("drop", [ref], [None])
        yield self._weight_call(ref, "")
        yield from self._recheck_waiters(ref.name)

    def _weight_call(self, ref: LimitRef, weight: Argument) -> Call:
        return Call(script("set_weight"), [self.keys.limits], [self.keys.weight(ref), weight])

    def check_known(self, ref: LimitRef) -> Plan[None]:
        """Raise UnknownLimitError if neither the code nor the server has a limit of the name."""
        if ref.name not in self.limits:
            fields = [self.keys.field(LimitRef(ref.name, None)), self.keys.field(ref)]
            if not any((yield Call(script("read_definitions"), [self.keys.limits], fields))):
                raise unknown_limit_error(ref.name, self.limits)

    def _define(
        self,
        mode: str,
        refs: Sequence[LimitRef],
        limits: Sequence[Limits | None],
        now: int | None = None,
    ) -> Plan[list[LimitRef]]:
        """Run ``define.lua``; return the limits that were in force before and have changed."""
        if not refs:
            return []
        if now is None:
            # It need not be the server's: scripts reply if they need windows of another time.
            now = self.local_time()
        names = [self.keys.limits]
        args = [self.now(), mode]
        for ref, own in zip(refs, limits, strict=True):
            names += (self.keys.state(ref), self.keys.entries(ref))
            key_cap = self.keys.key_cap(ref.name)
            packed = b"" if own is None else definitions.pack(own, now, key_cap)
            args += (ref.name, self.keys.field(ref), packed)
        done, *indexes = yield Call(script("define"), names, args)
        if not done:
            refused = indexes[0] - 1
            raise slots_error(refs[refused].name, limits[refused])
        return [refs[index - 1] for index in indexes]

    def _recheck_waiters(self, name: str, cursor: bytes = b"") -> Plan[None]:
        """Decide again for lines at a limit, in short steps; ``cursor``: of a first step."""
        index = self.keys.waiting_list_index(name)
        while cursor != b"0":
            cursor = yield Call(script("recheck_waiters"), [index], [self.now(), cursor or "0"])

    def pause(self, ref: LimitRef, seconds: float | None, record: str | None = None) -> Plan[float]:
        """Pause a limit or one key of it, until it is resumed if ``seconds`` is None.

        Returns the seconds for which it is paused now. With the ``record`` of a fan-out, whose key
        it is: below zero if the record does not exist.
        """
        us = ENDLESS_US if seconds is None else to_us(check_duration(seconds, "a pause"))
        yield from self.check_known(ref)
        names = [self.keys.pause(ref)] if record is None else [self.keys.pause(ref), record]
        paused: int = yield Call(script("pause"), names, [self.now(), us])
        return pause_to_seconds(paused)

    def resume(self, ref: LimitRef) -> Plan[bool]:
        """Lift the pause of a limit or of one key of it; return whether there was one.

        Waiting lines are decided again even if there was none, so that another call completes one
        that was interrupted.
        """
        yield from self.check_known(ref)
        keys, whole = self.keys, ref.key is None
        waits = keys.waiting_list_index(ref.name) if whole else keys.waiting_lists(ref)
        names = [keys.pause(ref), waits]
        lifted, cursor = yield Call(script("resume"), names, [self.now(), int(ref.key is not None)])
        yield from self._recheck_waiters(ref.name, cursor)
        return bool(lifted)

    def reset(self, ref: LimitRef) -> Plan[None]:
        """Clear the state of a limit or one key of it, and lift its pause."""
        yield from self.check_known(ref)
        keys, index = self.keys, self.keys.waiting_list_index(ref.name)
        names = [keys.state(ref), keys.pause(ref), keys.entries(ref), keys.key_cap(ref.name)]
        cursor = yield Call(script("reset"), [*names, index], [self.now()])
        yield from self._recheck_waiters(ref.name, cursor)


def check_definition(field: str, written: LimitsLike | None, weight: int | None) -> None:
    """Raise LimitValueError unless a limit, a weight in its bounds, or both are given."""
    if written is None and weight is None:
        raise LimitValueError(
            f"neither a limit nor a weight is given for {field!r}; allowed: one, or both"
        )
    if weight is not None:
        check_weight(field, weight)
