"""What was counted in parts of time, computed from the records of the totals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.observe.times import at_time
from celery_throttle.observe.totals import pair_counters, read_totals
from celery_throttle.observe.values import Period

#: The most seconds that recent records cover; those of a week are farther apart.
RECENT_SECONDS = 900


class Record(NamedTuple):
    """The totals at one time; see ``record_totals.lua``."""

    at: int  #: microseconds
    waiting: int  #: tasks
    counters: Mapping[str, float]


def read_record(packed: bytes) -> Record:
    """Return the record of a text."""
    at, waiting, *counters = packed.split()
    return Record(int(at), int(waiting), pair_counters(counters))


def divide(records: Sequence[Record], start: int, parts: int) -> tuple[Period, ...]:
    """Divide the time from ``start`` (us) to the last record into equal parts.

    Between two records the totals have grown steadily. Before the first one nothing is known of
    them, so they count as the same.
    """
    end = records[-1].at
    edges = [start + (end - start) * n // parts for n in range(parts + 1)]
    found = [_interpolate(records, edge) for edge in edges]
    return tuple(
        Period(
            at_time(one.at),
            at_time(other.at),
            read_totals(_increase(one.counters, other.counters)),
            other.waiting,
            max([other.waiting, *_waiting_between(records, one.at, other.at)]),
        )
        for one, other in pairwise(found)
    )


def _waiting_between(records: Sequence[Record], start: int, end: int) -> list[int]:
    """Return the waiting tasks of the records behind a time and up to another."""
    first, last = (bisect_right(records, at, key=attrgetter("at")) for at in (start, end))
    return [record.waiting for record in records[first:last]]


def _increase(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Return how much each counter has grown; one that is lower than before began anew."""
    return {
        name: total - old.get(name, 0) if total >= old.get(name, 0) else total
        for name, total in new.items()
    }


def _interpolate(records: Sequence[Record], at: int) -> Record:
    index = bisect_right(records, at, key=attrgetter("at"))
    if index == 0:
        return records[0]._replace(at=at, waiting=0)
    before = records[index - 1]
    if index == len(records):
        return before._replace(at=at)
    after = records[index]
    share = (at - before.at) / (after.at - before.at)
    grown = _increase(before.counters, after.counters)
    # Whole numbers, so that parts of time add up to the whole.
    counters = {name: round(before.counters.get(name, 0) + share * grown[name]) for name in grown}
    return Record(at, before.waiting, counters)


def seconds_between(period: Period) -> float:
    """Return the length of a period in seconds."""
    return max((period.end - period.start).total_seconds(), 1 / MICROSECONDS)
