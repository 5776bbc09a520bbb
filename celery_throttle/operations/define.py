"""Plans that change limits: register, define, pause, resume and reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery_throttle.errors import LimitValueError
from celery_throttle.limits.author import Author
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
from celery_throttle.operations.waiting_queues import limit_names
from celery_throttle.store import definitions
from celery_throttle.store.keys import FAN_OUT_LIMIT
from celery_throttle.store.script import Call, script

#: The status of a reply about a limit that the server does not know, in both reply formats.
_UNKNOWN = (ReplyStatus.UNKNOWN, b"unknown")


class DefinePlans(LimitPlans):
    """Plans that change limits."""

    __slots__ = ()

    def register(self, limits: Mapping[str, Limits], now: int | None = None) -> Plan[None]:
        """Put limits of the code in force, unless the rules file or a definition replaces them.

        ``now``: the server's time in microseconds, if it is known.
        """
        yield from self._register([LimitRef(name, None) for name in limits], limits, now)

    def _register(
        self, refs: Sequence[LimitRef], limits: Mapping[str, Limits], now: int | None
    ) -> Plan[None]:
        of_code = [limits.get(ref.name) if ref.key is None else None for ref in refs]
        for changed in (yield from self._define("code", refs, of_code, now)):
            yield from self._recheck_waiters(changed.name)

    def register_missing(self, refs: Sequence[LimitRef], now: int | None = None) -> Plan[None]:
        """Register those of the code's limits that a call needs, and renew calendar windows.

        The server may have lost the rules file as well, so that is put in force before.

        ``now``: as for :meth:`register`.
        """
        if self.restore is not None:
            yield from self.restore()
        wholes = [LimitRef(name, None) for name in dict.fromkeys(ref.name for ref in refs)]
        every = [*wholes, *(ref for ref in refs if ref.key is not None)]
        yield from self._register(every, self.limits, now)
        texts = yield from self._read_definitions(self.keys.field(ref) for ref in every)
        found = [(ref, packed) for ref, packed in zip(every, texts, strict=True) if packed]
        limits = [definitions.unpack(packed) for _, packed in found]
        yield from self._define("windows", [ref for ref, _ in found], limits, now)

    def _read_definitions(self, fields: Iterable[str]) -> Plan[Sequence[bytes | None]]:
        """Return the limits in force of some fields, as text; None for one without its own."""
        call = Call(script("read_definitions"), [self.keys.limits], [self.now(), *fields])
        found: Sequence[bytes | None] = yield call
        return found

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
        self,
        ref: LimitRef,
        written: LimitsLike | None,
        weight: int | None = None,
        *,
        lasts: float | None = None,
        author: Author | None = None,
    ) -> Plan[None]:
        """Define the limits of a name, or of one key of it, at run time, its weight, or both.

        ``lasts``: for how many seconds; None: until :meth:`undefine`.

        Raises:
            LimitError: they are wrong, or switch between a rate and slots.
            UnknownLimitError: a key, or a weight, of a limit that is not defined.
        """
        limits, lasts_us = yield from self.check_definition(ref, written, weight, lasts)
        author = author or Author.of()
        if limits is not None:
            yield from self._define("set", [ref], [limits], author=author, lasts_us=lasts_us)
            yield from self._recheck_waiters(ref.name)
        if weight is not None:
            yield self._weight_call(ref, weight, author, lasts_us)

    def check_definition(
        self,
        ref: LimitRef,
        written: LimitsLike | None,
        weight: int | None = None,
        lasts: float | None = None,
    ) -> Plan[tuple[Limits | None, int]]:
        """Return the limits of a definition, and the microseconds for which it lasts, 0 for ever.

        Raises as :meth:`define`.
        """
        lasts_us = check_definition(self.keys.field(ref), written, weight, lasts)
        if written is None or ref.key is not None:
            yield from self.check_known(ref)
        if written is None:
            return None, lasts_us
        limits = parse_limits(written, ref.name)
        check_same_kind(ref.name, limits, self.limits.get(ref.name, limits))
        return limits, lasts_us

    def undefine(self, ref: LimitRef, author: Author | None = None) -> Plan[None]:
        """Remove what was defined at run time for a name or key.

        If neither that nor a weight was, a limit that neither the rules file nor this code has is
        removed. A process whose code has it registers it again when it needs it; its units in use
        are kept.

        Raises as :meth:`check_known`.
        """
        author = author or Author.of()
        yield from self.check_known(ref)
        of_code = self.limits.get(ref.name) if ref.key is None else None
        yield from self._define("unset", [ref], [of_code], author=author)
        yield self._weight_call(ref, 0, author)
        yield from self._recheck_waiters(ref.name)

    def _weight_call(self, ref: LimitRef, weight: int, author: Author, lasts_us: int = 0) -> Call:
        """Return the call that sets a weight, or removes it if it is 0."""
        keys = self.keys
        names = [keys.limits, keys.rules, keys.names, keys.changes, keys.own_keys(ref.name)]
        args = [self.now(), ref.name, keys.field(ref), weight, lasts_us, author.pack()]
        return Call(script("set_weight"), names, args)

    def check_known(self, ref: LimitRef) -> Plan[None]:
        """Raise UnknownLimitError if neither the code nor the server has a limit of the name."""
        if ref.name not in self.limits:
            fields = [self.keys.field(LimitRef(ref.name, None)), self.keys.field(ref)]
            if not any((yield from self._read_definitions(fields))):
                raise unknown_limit_error(ref.name, self.limits)

    def _define(
        self,
        mode: str,
        refs: Sequence[LimitRef],
        limits: Sequence[Limits | None],
        now: int | None = None,
        *,
        author: Author | None = None,
        lasts_us: int = 0,
    ) -> Plan[list[LimitRef]]:
        """Run ``define.lua``; return the limits that were in force before and have changed."""
        if not refs:
            return []
        if now is None:
            # It need not be the server's: scripts reply if they need windows of another time.
            now = self.local_time()
        keys = self.keys
        names = [keys.limits, keys.rules, keys.names, keys.changes]
        args = [self.now(), mode, lasts_us, (author or Author.of()).pack()]
        for ref, own in zip(refs, limits, strict=True):
            names += (keys.state(ref), keys.entries(ref), keys.own_keys(ref.name))
            definition = definitions.NO_DEFINITION
            if own is not None:
                definition = definitions.pack(own, now, keys.key_cap(ref.name))
            args += (ref.name, keys.field(ref), *definition)
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

    def pause(
        self,
        ref: LimitRef,
        seconds: float | None,
        record: str | None = None,
        author: Author | None = None,
    ) -> Plan[float]:
        """Pause a limit or one key of it, until it is resumed if ``seconds`` is None.

        Returns the seconds for which it is paused now. With the ``record`` of a fan-out, whose key
        it is: below zero if the record does not exist.
        """
        us = ENDLESS_US if seconds is None else to_us(check_duration(seconds, "a pause"))
        about = (author or Author.of()).pack()
        yield from self.check_known(ref)
        names, key = [*self.keys.pause_change(ref)], ref.key or ""
        if record is not None:
            names.append(record)
            key = ""
        args = [self.now(), us, self.keys.field(ref), key, about]
        paused: int = yield Call(script("pause"), names, args)
        return pause_to_seconds(paused)

    def note_change(
        self, action: str, ref: LimitRef | None, what: str, author: Author
    ) -> Plan[None]:
        """Note in the log of changes what was done to waiting tasks; ``ref`` None: to all."""
        keys = self.keys
        names = [keys.limits, keys.rules, keys.names, keys.changes]
        field = "" if ref is None else keys.field(ref)
        args = [self.now(), action, field, what, author.pack()]
        yield Call(script("note_change"), names, args)

    def list_names(self) -> Plan[tuple[int, list[str]]]:
        """Return the server's time in microseconds, and the names of all limits that it knows."""
        return limit_names(self.keys, self.now())

    def limit_names(self) -> Plan[list[str]]:
        """Return the names of all limits that users have defined, sorted."""
        _, names = yield from self.list_names()
        return sorted({*names, *self.limits} - {FAN_OUT_LIMIT})

    def pause_all(self, seconds: float | None, author: Author) -> Plan[list[str]]:
        """Pause every limit; return their names."""
        names = yield from self.limit_names()
        for name in names:
            yield from self.pause(LimitRef(name, None), seconds, author=author)
        return names

    def resume_all(self, author: Author) -> Plan[list[str]]:
        """Lift the pauses of all limits, not those of keys; return the names of paused limits."""
        lifted = {}
        for name in (yield from self.limit_names()):
            lifted[name] = yield from self.resume(LimitRef(name, None), author)
        return [name for name in lifted if lifted[name]]

    def resume(self, ref: LimitRef, author: Author | None = None) -> Plan[bool]:
        """Lift the pause of a limit or of one key of it; return whether there was one.

        Waiting lines are decided again even if there was none, so that another call completes one
        that was interrupted.
        """
        keys = self.keys
        args = [self.now(), keys.field(ref), ref.key or "", (author or Author.of()).pack()]
        yield from self.check_known(ref)
        whole = ref.key is None
        waits = keys.waiting_list_index(ref.name) if whole else keys.waiting_lists(ref)
        lifted, cursor = yield Call(script("resume"), [*keys.pause_change(ref), waits], args)
        yield from self._recheck_waiters(ref.name, cursor)
        return bool(lifted)

    def reset(self, ref: LimitRef, author: Author | None = None) -> Plan[None]:
        """Clear the state of a limit or one key of it, and lift its pause."""
        keys, index = self.keys, self.keys.waiting_list_index(ref.name)
        args = [self.now(), keys.field(ref), ref.key or "", (author or Author.of()).pack()]
        yield from self.check_known(ref)
        names = [*keys.pause_change(ref), keys.state(ref), keys.entries(ref)]
        call = Call(script("reset"), [*names, keys.key_cap(ref.name), index], args)
        yield from self._recheck_waiters(ref.name, (yield call))


def check_definition(
    field: str, written: LimitsLike | None, weight: int | None, lasts: float | None
) -> int:
    """Return the microseconds for which a definition lasts, 0 for ever.

    Raises:
        LimitValueError: neither a limit nor a weight is given, or a value is out of its bounds.
    """
    if written is None and weight is None:
        raise LimitValueError(
            f"neither a limit nor a weight is given for {field!r}; allowed: one, or both"
        )
    if weight is not None:
        check_weight(field, weight)
    if lasts is None:
        return 0
    return max(1, to_us(check_duration(lasts, "a definition's duration")))
