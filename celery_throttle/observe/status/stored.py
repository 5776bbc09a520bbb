"""Plans that read what is stored of limits and keys; nothing is measured or computed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

from celery_throttle.errors import LimitError
from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds, to_us
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import parse_limits
from celery_throttle.observe.observer import Observer, read_keys
from celery_throttle.observe.times import at_time, at_time_or_none
from celery_throttle.observe.totals import pair_counters, read_totals
from celery_throttle.observe.values import LimitStatus, Origin, Pause
from celery_throttle.operations.author import Author
from celery_throttle.operations.lines import limit_names
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import FAN_OUT_NAME
from celery_throttle.store.script import Call, script

#: Names of the layers of definitions, by those in ``records.lua``.
_LAYERS = {b"code": "code", b"rules": "rules", b"set": "run time"}

#: How many limits one call reads.
NAMES_OF_A_CALL = 10


def read_names(observer: Observer) -> Plan[list[str]]:
    """Return the names of all limits that the server or the code has, sorted."""
    _, names = yield from limit_names(observer.keys, observer.now())
    return sorted({*names, *observer.limits})


def read_all(observer: Observer) -> Plan[list[LimitStatus]]:
    """Return the status of all limits, without what has to be measured or computed.

    That is ``usage``, ``runnable``, ``oldest`` and ``forecast``.
    """
    names = yield from read_names(observer)
    return (yield from read_stored(observer, [LimitRef(name, None) for name in names]))


def estimate_wait(observer: Observer, status: LimitStatus) -> Plan[float | None]:
    """Return about how many seconds the tasks that wait at a limit need, by its rate alone.

    Unlike a forecast it does not look at lines. Tasks of keys wait as long as those of the key
    that has most. None if nothing waits, or if nobody knows.
    """
    tasks = status.waiting
    if status.waiting_keys:
        _, found = yield from list_keys(observer, status.name, "waiting", most=1)
        tasks = max([1, *(int(waiting) for _, waiting in found)])
    return estimate_seconds(status, tasks)


def list_keys(
    observer: Observer, name: str, which: str, first: int = 0, most: int = 100
) -> Plan[tuple[int, list[tuple[str, float]]]]:
    """Return keys of a limit, some at a time, and how many there are.

    ``which``: ``"waiting"``, by how many tasks wait, the most first; ``"paused"``, by the end
    of the pause; ``"own"``: those with their own definition or weight.
    """
    keys = {
        "waiting": observer.keys.key_backlogs(name),
        "paused": observer.keys.paused_keys(name),
        "own": observer.keys.own_keys(name),
    }[which]
    if which == "waiting" and first:
        first += 1  # the empty key has the sum, so it comes before all others
    _, (count, found) = yield from read_keys(
        observer, ("ZCARD", keys), ("ZRANGE", keys, first, first + most, "REV", "WITHSCORES")
    )
    pairs = [
        (key.decode(), float(score))
        for key, score in zip(found[::2], found[1::2], strict=True)
        if key
    ]
    return max(0, count - 1) if which == "waiting" else count, pairs[:most]


def is_stored(observer: Observer, ref: LimitRef) -> Plan[bool]:
    """Return whether anything is stored of a key: use, tasks, a pause, a definition, a weight.

    A limit without a key always counts as stored.
    """
    if ref.key is None:
        return True
    keys = observer.keys
    own = keys.state(ref), keys.entries(ref), keys.pause(ref), keys.backlog(ref)
    fields = keys.field(ref), f"weight {keys.field(ref)}"
    _, (defined, *exist) = yield from read_keys(
        observer,
        ("HMGET", keys.limits, *fields),
        *(("EXISTS", key) for key in (*own, keys.waiting_lists(ref))),
    )
    return any(exist) or any(value is not None for value in defined)


def begin_once(
    observer: Observer, what: str, seconds: float, *more: tuple[str, float]
) -> Plan[bool]:
    """Return whether this caller is the first to do something in some seconds.

    ``more``: other things that must not have been done, each with its seconds.
    """
    pairs = [(what, seconds), *more]
    names = [observer.keys.once(encode_key(one)) for one, _ in pairs]
    args = [observer.now(), *(to_us(own) for _, own in pairs)]
    began = yield Call(script("begin_once"), names, args)
    return bool(began)


def read_with_pauses(observer: Observer, refs: Sequence[LimitRef]) -> Plan[list[LimitStatus]]:
    """Read as :func:`read_stored`, with the pause of the limit beside that of a key."""
    wholes = [LimitRef(name, None) for name in dict.fromkeys(ref.name for ref in refs if ref.key)]
    found = yield from read_stored(observer, [*refs, *wholes])
    pauses = {status.name: status.pauses for status in found[len(refs) :]}
    return [
        replace(status, pauses=(*pauses[status.name], *status.pauses)) if status.key else status
        for status in found[: len(refs)]
    ]


def read_stored(observer: Observer, refs: Sequence[LimitRef]) -> Plan[list[LimitStatus]]:
    """Read what is stored of limits and keys; without what has to be measured or computed."""
    keys, statuses = observer.keys, []
    for start in range(0, len(refs), NAMES_OF_A_CALL):
        batch = refs[start : start + NAMES_OF_A_CALL]
        names, args = [keys.limits, keys.limits_with_keys], [observer.now()]
        for ref in batch:
            pauses = keys.pause(ref), keys.pause_origin(ref), keys.paused_keys(ref.name)
            names += (*pauses, keys.own_keys(ref.name), keys.backlog(ref))
            args += (ref.name, keys.field(ref))
        now, *rows = yield Call(script("read_status"), [*names, keys.totals()], args)
        statuses += [
            _read_row(ref, row, int(now), observer.limits.get(ref.name, ()))
            for ref, row in zip(batch, rows, strict=True)
        ]
    return statuses


def estimate_seconds(status: LimitStatus, tasks: int) -> float | None:
    """Return :func:`estimate_wait` of a limit; ``tasks``: of the key that has most."""
    if not status.waiting or any(pause.until is None for pause in status.pauses):
        return None
    rates = [limit.rate for limit in limits_in_force(status.name, status.clauses)]
    seconds = [
        tasks * rate.period_us / rate.count / MICROSECONDS
        for rate in rates
        if isinstance(rate, Rate)
    ]
    paused = max([0.0, *(pause.seconds for pause in status.pauses)])
    return paused + max(seconds) if seconds and len(seconds) == len(rates) else None


@lru_cache(maxsize=4096)
def limits_in_force(name: str, clauses: tuple[str, ...]) -> Limits:
    """Return the limits of the clauses of a status.

    They are empty if the limit is not defined, or was defined by a later version of this package.
    """
    try:
        return parse_limits(clauses, name) if clauses else ()
    except LimitError:
        return ()


def _read_row(
    ref: LimitRef, row: Sequence[bytes], now: int, of_code: Sequence[Limit]
) -> LimitStatus:
    """Return the status of a row of ``read_status.lua``."""
    layer, since, text, ends, given, about, weight, paused, pause_origin = row[:9]
    paused_keys, own_keys, waiting, waiting_keys, totals, needs_keys = row[9:]
    origin = None
    if layer:
        author = Author.unpack(about.decode())
        origin = Origin(
            _LAYERS[layer],
            at_time(float(since)),
            at_time_or_none(given),
            author,
            at_time_or_none(ends),
        )
    clauses = text.decode().split("; ") if text else map(str, of_code)
    return LimitStatus(
        name=ref.name,
        key=ref.key,
        defined=bool(layer or of_code),
        clauses=tuple(clauses),
        origin=origin,
        weight=int(weight),
        usage=(),
        pauses=_read_pauses(ref, int(paused), pause_origin.decode(), now),
        paused_keys=int(paused_keys),
        own_keys=int(own_keys),
        has_keys=any(map(int, (needs_keys, paused_keys, own_keys, waiting_keys))),
        waiting=int(waiting),
        waiting_keys=int(waiting_keys),
        runnable=0,
        oldest=None,
        forecast=None,
        totals=read_totals(pair_counters(totals)),  # type: ignore[arg-type]  # a list
    )


def _read_pauses(ref: LimitRef, paused_us: int, origin: str, now: int) -> tuple[Pause, ...]:
    if not paused_us:
        return ()
    seconds = pause_to_seconds(paused_us)
    until = None if seconds == inf else at_time(now + paused_us)
    since, _, about = origin.partition(" ")
    author = Author.unpack(about)
    return (Pause(*shown_ref(ref), seconds, until, at_time_or_none(float(since or 0)), author),)


def shown_ref(ref: LimitRef) -> tuple[str, str | None]:
    """Return name and key as values of the status have them."""
    return ("fan-out" if ref.name == FAN_OUT_NAME else ref.name), ref.key
