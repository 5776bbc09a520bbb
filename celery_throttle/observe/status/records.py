"""Plans that record the totals of limits, and read what was counted in parts of a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import Observer, at_time, merge_fields, pair_up
from celery_throttle.observe.totals import LAST_API_REFUSAL, add_totals, read_totals
from celery_throttle.observe.values import Period
from celery_throttle.operations.lines import END
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import Keys

#: The longest time that records cover, in seconds.
MAX_RECORDED_SECONDS = 7 * 86_400

#: The most seconds that recent records cover; those of a week are farther apart.
RECENT_SECONDS = 900

#: The parts into which recent records are divided: half a minute each.
_RECENT_PARTS = 30

#: Seconds between two recent records, and between two of a week.
RECORD_SECONDS, WEEK_RECORD_SECONDS = 10.0, 600.0

#: The least seconds between two recent records: a worker that is a bit early does not skip one.
MIN_RECORD_SECONDS = RECORD_SECONDS * 0.9


class Record(NamedTuple):
    """The totals at one time; see ``record_totals.lua``."""

    at: int  #: microseconds
    waiting: int  #: tasks
    paused: int  #: those of them that a pause held up
    counters: Mapping[str, float]


def record_totals(observer: Observer) -> Plan[None]:
    """Record the totals of all limits, unless somebody did so in the last ten seconds."""
    names, cursor = [observer.keys.names, *_backlog_keys(observer.keys)], b"0"
    while True:
        cursor = yield observer.call("record_totals", names, cursor, to_us(MIN_RECORD_SECONDS))
        if cursor == END:
            return


def _backlog_keys(keys: Keys) -> tuple[str, ...]:
    head = LimitRef("", None)
    backlog, pause = keys.backlog(head), keys.pause(head)
    return keys.recorded, backlog, pause, keys.paused_keys(""), keys.totals()


def read_recent(observer: Observer, name: str) -> Plan[tuple[Period, ...]]:
    """Return what was counted at a limit in the last 15 minutes, in parts of half a minute."""
    records = yield from read_records(observer, name, RECENT_SECONDS)
    return divide_records([records], RECENT_SECONDS, _RECENT_PARTS)


def read_records(observer: Observer, name: str, seconds: float) -> Plan[list[Record]]:
    """Return the records of a limit in the last seconds; the last one is of now.

    Raises:
        LimitValueError: it is more than a week, or less than a second.
    """
    if not 1 <= seconds <= MAX_RECORDED_SECONDS:
        raise LimitValueError(
            f"a time of {shown(seconds)} seconds is not recorded; allowed: from one second to "
            "seven days"
        )
    older: list[Record] = []
    if seconds > RECENT_SECONDS:
        _, _, older = yield from _read_records(observer, name, "week", seconds)
    # The recent records are closer together, so they also show what the others miss.
    last, recorded, known = yield from _read_records(
        observer, name, "recent", min(seconds, RECENT_SECONDS)
    )
    if known and known[-1].at < recorded:
        known.append(known[-1]._replace(at=recorded))  # until then nothing had changed
    known = sorted({one.at: one for one in [*older, *known]}.values())
    if not known and last.counters:  # recorded by nobody yet: all is of the last period
        known = [last._replace(at=last.at - to_us(RECORD_SECONDS), counters={})]
    return [*known, last]


def divide_records(
    shards: Sequence[list[Record]], seconds: float, parts: int, *, since: datetime | None = None
) -> tuple[Period, ...]:
    """Return what was counted at a limit in the last seconds, in all shards, in equal parts.

    ``since``: when the limit came into force. The time before that, and before its first record, is
    left out; there may be fewer parts then.
    """
    end = max(records[-1].at for records in shards)
    start = end - to_us(seconds)
    if since is not None:
        begun = [_begin_at(records, to_us(since.timestamp())) for records in shards]
        shards = [records for records, _ in begun]
        # No less than the time between two records: a rate of some moments says nothing.
        start = max(start, min([end - to_us(RECORD_SECONDS), *(first for _, first in begun)]))
        parts = max(1, min(parts, (end - start) // to_us(RECORD_SECONDS)))
    edges = [start + (end - start) * n // parts for n in range(parts + 1)]
    divided = [_divide(records, edges) for records in shards]
    return tuple(add_periods(some) for some in zip(*divided, strict=True))


def add_periods(several: Sequence[Period]) -> Period:
    """Return what was counted in the same period in all shards."""
    return merge_fields(several, totals=add_totals, waiting=sum, most_waiting=sum, paused=sum)


def _begin_at(records: list[Record], since: int) -> tuple[list[Record], int]:
    """Return records whose first is no earlier than the limit, and the time (us) of their first.

    ``since``: when (us) the limit came into force. The first record of a new limit is made for the
    records before, up to ten seconds earlier.
    """
    *known, last = records
    since = min(since, last.at - 1)
    if not known:
        return records, since
    first, *others = known
    is_new = not first.counters and first.at < since and all(one.at > since for one in others)
    if is_new:
        first = first._replace(at=since)
    return [first, *others, last], min(first.at, since)


def _read_records(
    observer: Observer, name: str, which: str, seconds: float
) -> Plan[tuple[Record, int, list[Record]]]:
    """Return how it is now, when the last records were made, and the records of a time."""
    names = [observer.keys.records(name, which), *_backlog_keys(observer.keys)]
    now, recorded, waiting, paused, totals, found = yield observer.call(
        "read_records", names, name, to_us(seconds)
    )
    records = []
    for packed in found:
        at, tasks, held_up, *counters = packed.split()
        records.append(Record(int(at), int(tasks), int(held_up), _read_counters(counters)))
    return Record(int(now), waiting, paused, _read_counters(totals)), int(recorded), records


def _read_counters(flat: Sequence[bytes]) -> dict[str, float]:
    totals = pair_up(flat)
    totals.pop(LAST_API_REFUSAL, None)
    return {name: float(total) for name, total in totals.items()}


def _divide(records: Sequence[Record], edges: Sequence[int]) -> list[Period]:
    """Return what was counted between some times (us).

    Between two records the totals have grown steadily. Before the first one nothing is known of
    them, so they count as the same.
    """
    periods = []
    for one, other in pairwise(_interpolate(records, edge) for edge in edges):
        first, last = (_count_until(records, edge.at) for edge in (one, other))
        waiting = [record.waiting for record in records[first:last]]
        totals = read_totals(_increase(one.counters, other.counters))
        most = max([other.waiting, *waiting])
        periods.append(
            Period(at_time(one.at), at_time(other.at), totals, other.waiting, most, other.paused)
        )
    return periods


def _interpolate(records: Sequence[Record], at: int) -> Record:
    index = _count_until(records, at)
    if index == 0:
        return records[0]._replace(at=at, waiting=0, paused=0)
    before = records[index - 1]
    if index == len(records):
        return before._replace(at=at)
    after = records[index]
    share = (at - before.at) / (after.at - before.at)
    grown = _increase(before.counters, after.counters)
    # Whole numbers, so that parts of time add up to the whole.
    counters = {name: round(before.counters.get(name, 0) + share * grown[name]) for name in grown}
    # What grows until the next record is due to the pauses that it has seen.
    paused = before.paused if at == before.at else after.paused
    return Record(at, before.waiting, paused, counters)


def _count_until(records: Sequence[Record], at: int) -> int:
    """Return how many records are not later than a time."""
    return bisect_right(records, at, key=attrgetter("at"))


def _increase(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Return how much each counter has grown; one that is lower than before began anew."""
    return {
        name: total - old.get(name, 0) if total >= old.get(name, 0) else total
        for name, total in new.items()
    }
