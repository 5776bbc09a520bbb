"""Plans that read what is stored of limits and keys; nothing is measured or computed here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

from celery_throttle.errors import LimitError
from celery_throttle.limits.duration import pause_to_seconds, to_us
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import parse_limits
from celery_throttle.limits.shards import HOME
from celery_throttle.observe.observer import (
    Observer,
    at_time,
    at_time_or_none,
    pair_up,
    read_keys,
)
from celery_throttle.observe.totals import LAST_API_REFUSAL, read_totals
from celery_throttle.observe.values import ApiRefusal, Change, LimitStatus, Origin, Pause
from celery_throttle.operations.author import Author
from celery_throttle.operations.lines import list_names
from celery_throttle.operations.plan import Plan, batches

#: Names of the layers of definitions, by those in ``records.lua``.
_LAYERS = {b"code": "code", b"rules": "rules", b"set": "run time"}

#: The ids of changes; see :func:`place_of`. The number behind the milliseconds may be left out.
CHANGE_ID = re.compile(r"[0-9]{1,15}(-[0-9]{1,15})?(@[A-Za-z0-9_.\-/]{1,110})?")

NAMES_OF_A_CALL = 10

#: Of how many limits one call reads the last refusal.
_TOTALS_OF_A_CALL = 1000


class KeyPage(NamedTuple):
    """Keys of a limit, some at a time."""

    total: int  #: how many there are
    keys: list[tuple[str, float]]  #: of this page, each with a number


def read_names(observer: Observer) -> Plan[list[str]]:
    """Return the names of all limits that the server or the code has, sorted."""
    _, names = yield from list_names(observer)
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
) -> Plan[KeyPage]:
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
    return KeyPage(max(0, count - 1) if which == "waiting" else count, pairs[:most])


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
    began = yield observer.call("begin_once", names, *(to_us(own) for _, own in pairs))
    return bool(began)


def read_stored(observer: Observer, refs: Sequence[LimitRef]) -> Plan[list[LimitStatus]]:
    """Read what is stored of limits and keys; without what has to be measured or computed."""
    keys, of_code = observer.keys, observer.limits
    wholes = [LimitRef(ref.name, None) for ref in refs if ref.key is not None]
    every = [*dict.fromkeys([*refs, *wholes])]
    found: dict[LimitRef, LimitStatus] = {}
    for batch in batches(every, NAMES_OF_A_CALL):
        names, args = [keys.limits, keys.limits_with_keys], list[str]()
        for ref in batch:
            names += (keys.pause(ref), keys.pause_origin(ref), keys.paused_keys(ref.name))
            names += (keys.own_keys(ref.name), keys.backlog(ref))
            args += (ref.name, keys.field(ref))
        now, *rows = yield observer.call("read_stored", [*names, keys.totals()], *args)
        for ref, row in zip(batch, rows, strict=True):
            found[ref] = _read_row(ref, row, int(now), of_code.get(ref.name, ()))
    # The pause of a limit is also one of its keys.
    return [
        found[ref]
        if ref.key is None
        else replace(found[ref], pauses=found[LimitRef(ref.name, None)].pauses + found[ref].pauses)
        for ref in refs
    ]


def estimate_seconds(status: LimitStatus, tasks: int) -> float | None:
    """Return :func:`estimate_wait` of a limit; ``tasks``: of the key that has most."""
    if not status.waiting or any(pause.until is None for pause in status.pauses):
        return None
    rates = [limit.rate for limit in limits_in_force(status)]
    seconds = [tasks / rate.per_second for rate in rates if isinstance(rate, Rate)]
    paused = max([0.0, *(pause.seconds for pause in status.pauses)])
    return paused + max(seconds) if seconds and len(seconds) == len(rates) else None


def limits_in_force(status: LimitStatus) -> Limits:
    """Return the limits of the clauses of a status.

    They are empty if the limit is not defined, or was defined by a later version of this package.
    """
    return _parse_clauses(status.name, status.clauses)


@lru_cache(maxsize=4096)
def _parse_clauses(name: str, clauses: tuple[str, ...]) -> Limits:
    try:
        return parse_limits(clauses, name) if clauses else ()
    except LimitError:
        return ()


def _read_row(ref: LimitRef, row: Sequence[Any], now: int, of_code: Sequence[Limit]) -> LimitStatus:
    """Return the status of a row of ``read_stored.lua``."""
    layer, since, text, ends, given, about, weight, paused, pause_origin = row[:9]
    paused_keys, own_keys, waiting, waiting_keys, totals, needs_keys = row[9:]
    origin = None
    if layer:
        origin = Origin(
            layer=_LAYERS[layer],
            since=at_time(float(since)),
            defined=at_time_or_none(given),
            author=Author.unpack(about.decode()),
            until=at_time_or_none(ends),
        )
    counters = pair_up(totals)
    refusal = counters.get(LAST_API_REFUSAL)
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
        totals=read_totals(counters),
        last_api_refusal=_read_refusal(refusal) if refusal else None,
    )


def _read_refusal(packed: str) -> ApiRefusal:
    """Return what ``learn.lua`` has noted of a refusal."""
    at, _, request = packed.partition(" ")
    return ApiRefusal(at_time(int(at)), *json.loads(request))


def _read_pauses(ref: LimitRef, paused_us: int, origin: str, now: int) -> tuple[Pause, ...]:
    if not paused_us:
        return ()
    seconds = pause_to_seconds(paused_us)
    until = None if seconds == inf else at_time(now + paused_us)
    since, _, about = origin.partition(" ")
    author = Author.unpack(about)
    return (Pause(*ref, seconds, until, at_time_or_none(float(since or 0)), author),)


def read_changes(
    observer: Observer, most: int = 100, before: str | None = None
) -> Plan[list[Change]]:
    """Return changes of limits, the newest first; ``before``: id of the one to begin behind.

    That may be a change in another shard.
    """
    first, suffix = "+", _suffix(observer)
    if before is not None:
        at, _, shard = before.partition("@")
        first = at if suffix[1:] < shard else f"({at}"
    command = "XREVRANGE", observer.keys.changes, first, "-", "COUNT", most
    _, (rows,) = yield from read_keys(observer, command)
    return [_read_change(change_id.decode() + suffix, pair_up(flat)) for change_id, flat in rows]


def _suffix(observer: Observer) -> str:
    """Return the end of ids of changes; two servers may give the same beginning."""
    return "" if observer.shard == HOME else f"@{observer.shard}"


def read_history(
    observer: Observer, most: int = 100, before: str | None = None
) -> Plan[list[Change]]:
    """Return :func:`read_changes`, and among them the last refusal of each limit by its API.

    A refusal is a value with the action ``"429"`` and the task in ``new``.
    """
    changes = yield from read_changes(observer, most, before)
    oldest = place_of(changes[-1].id) if len(changes) == most else (0, 0)
    newest = (inf, 0) if before is None else place_of(before)
    names, found, suffix = (yield from read_names(observer)), list[Change](), _suffix(observer)
    for batch in batches(names, _TOTALS_OF_A_CALL):
        reads = [("HGET", f"{observer.keys.totals()}{name}", LAST_API_REFUSAL) for name in batch]
        _, packed = yield from read_keys(observer, *reads)
        refusals = zip(batch, packed, strict=True)
        found += [_refused(name, text.decode(), suffix) for name, text in refusals if text]
    found = [one for one in found if oldest < place_of(one.id) < newest]
    return sorted([*changes, *found], key=lambda one: place_of(one.id), reverse=True)[:most]


def place_of(change_id: str) -> tuple[Any, ...]:
    """Return the place of a change in the logs of all shards, by its id."""
    at, _, shard = change_id.partition("@")
    ms, _, number = at.partition("-")
    return int(ms), int(number or 0), shard


def _refused(name: str, packed: str, suffix: str) -> Change:
    refusal = _read_refusal(packed)
    field = name if refusal.key is None else f"{name}:{refusal.key}"
    task = f"task {refusal.task_id} ({refusal.task})" if refusal.task_id else ""
    ms, us = divmod(int(packed.partition(" ")[0]), 1000)
    return Change(f"{ms}-{us}{suffix}", refusal.at, "429", field, "", task, None)


def _read_change(change_id: str, about: Mapping[str, str]) -> Change:
    return Change(
        id=change_id,
        at=at_time(int(about["at"])),
        action=about["action"],
        limit=about["limit"],
        old=about["old"],
        new=about["new"],
        author=Author.unpack(about["about"]),
        until=at_time(int(about["until"])) if "until" in about else None,
    )
