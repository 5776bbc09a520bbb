"""Plans that change limits: register those of the code; define, pause and reset at run time.

Each is a function of what it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_throttle.errors import LimitValueError
from celery_throttle.limits.duration import (
    ENDLESS_US,
    Duration,
    check_duration,
    pause_to_seconds,
    to_us,
)
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import (
    LimitsLike,
    check_same_kind,
    check_weight,
    parse_limits,
    slots_error,
)
from celery_throttle.limits.shards import check_here
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan, PlanContext, ReadContext, read_call
from celery_throttle.operations.replies import ReplyStatus, unknown_limit_error
from celery_throttle.store import definitions
from celery_throttle.store.script import Argument, Call

#: The status of a reply about a limit that the server does not know, in both reply formats.
_UNKNOWN = (ReplyStatus.UNKNOWN, b"unknown")


class Put(NamedTuple):
    """What has become of definitions."""

    changed: Sequence[LimitRef]  #: the limits that were in force before and have changed
    #: The limits that are in another shard, by name, with its name: not defined here.
    elsewhere: Mapping[str, str]


def register(
    context: PlanContext,
    limits: Mapping[str, Limits],
    refs: Sequence[LimitRef] | None = None,
    now: int | None = None,
) -> Plan[Mapping[str, str]]:
    """Put limits of the code in force, unless the rules file or a definition replaces them.

    In the home shard, limits in another shard are left out; returns the names of their shards.

    ``refs``: which of them, and which keys; default all, without keys.

    Raises:
        OtherShardError: in any other shard: a limit is elsewhere, and none is put in force.
    """
    if refs is None:
        refs = [LimitRef(name, None) for name in limits]
    of_code = [limits.get(ref.name) if ref.key is None else None for ref in refs]
    put = yield from put_definitions(context, "code", refs, of_code, now)
    for changed in put.changed:
        yield from make_due(context, changed.name)
    return put.elsewhere


def register_missing(
    context: PlanContext, refs: Sequence[LimitRef], now: int | None = None
) -> Plan[None]:
    """Register those of the code's limits that a call needs, and renew calendar windows.

    The server may have lost the rules file as well, so that is put in force before.

    ``now``: the server's time in microseconds, if it is known.

    Raises:
        OtherShardError: a limit is in another shard.
    """
    if context.restore is not None:
        yield from context.restore()
    wholes = [LimitRef(name, None) for name in dict.fromkeys(ref.name for ref in refs)]
    every = [*wholes, *(ref for ref in refs if ref.key is not None)]
    check_here((yield from register(context, context.limits, every, now)))
    texts = yield from read_definitions(context, map(context.keys.field, every))
    found = [(ref, packed) for ref, packed in zip(every, texts, strict=True) if packed]
    limits = [definitions.unpack(packed) for _, packed in found]
    yield from put_definitions(context, "windows", [ref for ref, _ in found], limits, now)


def read_definitions(context: ReadContext, fields: Iterable[str]) -> Plan[Sequence[bytes | None]]:
    """Return the limits in force of some fields, as text; None for one without its own."""
    found: Sequence[bytes | None] = yield context.call(
        "read_definitions", [context.keys.limits], *fields
    )
    return found


def call_registered(context: PlanContext, call: Call, refs: Sequence[LimitRef]) -> Plan[Any]:
    """Run a call. If the server does not know one of its limits, register it and repeat.

    The reply of such a call is the status, the index of the limit, and the server's time; or a list
    of replies, if the call is about several tasks.
    """
    reply = yield call
    replies = reply if isinstance(reply[0], list) else (reply,)
    unknown = next((one for one in replies if one[0] in _UNKNOWN), None)
    if unknown is not None:
        yield from register_missing(context, refs, int(unknown[2]))
        reply = yield call
    return reply


def define(
    context: PlanContext,
    ref: LimitRef,
    written: LimitsLike | None,
    weight: int | None = None,
    *,
    lasts: Duration | None = None,
    author: Author | None = None,
) -> Plan[None]:
    """Define the limits of a name, or of one key of it, at run time, its weight, or both.

    The way of a change: ``define.lua`` writes the record, which each decision reads
    (``lib/requirements.lua``). ``make_due.lua`` makes the lines due that wait at the limit, and
    publishes that to workers (``worker/claims/wakeup.py``), whose next claim call decides by the
    new record. A weight changes no decision that has been made, so nothing is due for it.

    ``lasts``: for how long; None: until :meth:`undefine`.

    Raises:
        LimitError: they are wrong, or switch between a rate and slots.
        OtherShardError: the limit is in another shard.
        UnknownLimitError: a key, or a weight, of a limit that is not defined.
    """
    limits, lasts_us = parse_definition(context, ref, written, weight, lasts)
    if limits is None or ref.key is not None:
        yield from check_known(context, ref)
    author = author or Author.of()
    if limits is not None:
        put = yield from put_definitions(
            context, "set", [ref], [limits], author=author, lasts_us=lasts_us
        )
        check_here(put.elsewhere)
        yield from make_due(context, ref.name)
    if weight is not None:
        yield _weight_call(context, ref, weight, author, lasts_us)


def put_looked_up(
    context: PlanContext, ref: LimitRef, limits: Limits | None, lasts_us: int, author: Author
) -> Plan[None]:
    """Put in force what a function of the code gives to a key, for some time.

    ``limits``: None for those of all keys. It is the layer of the code, so that the rules file and
    :meth:`define` take precedence.

    Raises:
        LimitError: the key would switch between a rate and slots.
    """
    put = yield from put_definitions(
        context, "lookup", [ref], [limits], author=author, lasts_us=lasts_us
    )
    if put.changed:
        yield from make_due(context, ref.name)


def undefine(context: PlanContext, ref: LimitRef, author: Author | None = None) -> Plan[None]:
    """Remove what was defined at run time for a name or key.

    If neither that nor a weight was, a limit that neither the rules file nor this code has is
    removed. A process whose code has it registers it again when it needs it; its units in use
    are kept.

    Raises as :meth:`check_known`.
    """
    author = author or Author.of()
    yield from check_known(context, ref)
    of_code = context.limits.get(ref.name) if ref.key is None else None
    yield from put_definitions(context, "unset", [ref], [of_code], author=author)
    yield _weight_call(context, ref, 0, author)
    yield from make_due(context, ref.name)


def _weight_call(
    context: PlanContext, ref: LimitRef, weight: int, author: Author, lasts_us: int = 0
) -> Call:
    """Return the call that sets a weight, or removes it if it is 0."""
    args = context.keys.field(ref), weight, lasts_us, author.pack()
    return context.call("set_weight", context.keys.definition_change, *args)


def check_known(context: PlanContext, ref: LimitRef) -> Plan[None]:
    """Raise UnknownLimitError if neither the code nor the server has a limit of the name."""
    if ref.name not in context.limits:
        fields = [context.keys.field(LimitRef(ref.name, None)), context.keys.field(ref)]
        if not any((yield from read_definitions(context, fields))):
            raise unknown_limit_error(ref.name, context.limits)


def put_definitions(
    context: PlanContext,
    mode: str,
    refs: Sequence[LimitRef],
    limits: Sequence[Limits | None],
    now: int | None = None,
    *,
    author: Author | None = None,
    lasts_us: int = 0,
) -> Plan[Put]:
    """Run ``define.lua``."""
    if not refs:
        return Put((), {})
    names = dict.fromkeys(ref.name for ref in refs)
    epoch = yield from context.assigned_epoch(names)
    if now is None:
        # It need not be the server's: scripts reply if they need windows of another time.
        now = context.local_time()
    keys = context.keys
    args: list[Argument] = []
    for ref, own in zip(refs, limits, strict=True):
        definition = definitions.NO_DEFINITION
        if own is not None:
            definition = definitions.pack(own, now, keys.key_cap(ref.name))
        args += (keys.field(ref), *definition)
    head = mode, lasts_us, (author or Author.of()).pack()
    reply = yield context.call("define", keys.definition_change, *head, epoch, *args)
    if reply[0] and reply[2] and context.fence is not None:
        # The home shard may have lost its map, and count its epochs anew.
        reads = [("HGET", keys.shards, name) for name in names]
        _, *entries = yield read_call(context.now(), *reads)
        least = max(int(entry.split()[0]) for entry in entries if entry)
        epoch = yield from context.fence.assign(names, least)
        reply = yield context.call("define", keys.definition_change, *head, epoch, *args)
    done, *found = reply
    if not done:
        refused = found[0] - 1
        raise slots_error(refs[refused].name, limits[refused])
    changed, elsewhere = found
    pairs = zip(elsewhere[::2], elsewhere[1::2], strict=True)
    return Put(
        [refs[index - 1] for index in changed],
        {refs[index - 1].name: shard.decode() for index, shard in pairs},
    )


def make_due(context: PlanContext, name: str, cursor: bytes = b"") -> Plan[None]:
    """Make the lines due that wait at a limit, in short steps; ``cursor``: of a first step."""
    index = context.keys.waiting_list_index(name)
    while cursor != b"0":
        cursor = yield context.call("make_due", [index], cursor or "0")


def pause(
    context: PlanContext,
    ref: LimitRef,
    lasts: Duration | None,
    author: Author | None = None,
) -> Plan[float]:
    """Pause a limit or one key of it, until it is resumed if ``lasts`` is None.

    Returns the seconds for which it is paused now.
    """
    us = ENDLESS_US if lasts is None else to_us(check_duration(lasts, "a pause"))
    about = (author or Author.of()).pack()
    yield from check_known(context, ref)
    args = us, context.keys.field(ref), ref.key or "", about
    paused: int = yield context.call("pause", context.keys.pause_change(ref), *args)
    return pause_to_seconds(paused)


def resume(context: PlanContext, ref: LimitRef, author: Author | None = None) -> Plan[bool]:
    """Lift the pause of a limit or of one key of it; return whether there was one.

    Waiting lines are decided again even if there was none, so that another call completes one
    that was interrupted.
    """
    keys = context.keys
    args = keys.field(ref), ref.key or "", (author or Author.of()).pack()
    yield from check_known(context, ref)
    whole = ref.key is None
    waits = keys.waiting_list_index(ref.name) if whole else keys.waiting_lists(ref)
    lifted, cursor = yield context.call("resume", [*keys.pause_change(ref), waits], *args)
    yield from make_due(context, ref.name, cursor)
    return bool(lifted)


def reset(context: PlanContext, ref: LimitRef, author: Author | None = None) -> Plan[None]:
    """Clear the state of a limit or one key of it, and lift its pause."""
    keys, index = context.keys, context.keys.waiting_list_index(ref.name)
    args = keys.field(ref), ref.key or "", (author or Author.of()).pack()
    yield from check_known(context, ref)
    names = [*keys.pause_change(ref), keys.state(ref), keys.entries(ref)]
    call = context.call("reset", [*names, keys.key_cap(ref.name), index], *args)
    yield from make_due(context, ref.name, (yield call))


def note_change(
    context: PlanContext, action: str, subject: str, what: str, author: Author
) -> Plan[None]:
    """Note in the log of changes what was done to waiting tasks.

    ``subject``: the field of their limit and key, or their fan-out; empty for all tasks.
    """
    args = action, subject, what, author.pack()
    yield context.call("note_change", context.keys.definition_change, *args)


def parse_definition(
    context: PlanContext,
    ref: LimitRef,
    written: LimitsLike | None,
    weight: int | None = None,
    lasts: Duration | None = None,
) -> tuple[Limits | None, int]:
    """Return the limits of a definition, and the microseconds for which it lasts, 0 for ever.

    Raises:
        LimitError: the limits are wrong, or switch between a rate and slots.
        LimitValueError: neither a limit nor a weight is given, or a value is out of its bounds.
    """
    if written is None and weight is None:
        field = context.keys.field(ref)
        raise LimitValueError(
            f"neither a limit nor a weight is given for {field!r}; allowed: one, or both"
        )
    if weight is not None:
        check_weight(context.keys.field(ref), weight)
    lasts_us = 0
    if lasts is not None:
        lasts_us = max(1, to_us(check_duration(lasts, "a definition's duration")))
    if written is None:
        return None, lasts_us
    limits = parse_limits(written, ref.name)
    check_same_kind(ref.name, limits, context.limits.get(ref.name, limits))
    return limits, lasts_us
