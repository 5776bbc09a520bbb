"""Plans that read the lines of waiting tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.solver import WaitingLine
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.lines import END, limit_names, waiting_queues
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Call, script

T = TypeVar("T")

#: Lines by their keys.
Lines = dict[bytes, WaitingLine]


def read_all_lines(
    observer: Observer, most: int = sys.maxsize, queues: Iterable[str] | None = None
) -> Plan[tuple[int, Lines | None]]:
    """Return the server's time in microseconds, and all lines; None if there are more than that.

    ``queues``: those with waiting tasks, if they are known.
    """
    if not observer.has_server:
        return observer.local_time(), {}
    now, names = yield from limit_names(observer.keys, observer.now())
    if queues is None:
        queues, are_all = yield from waiting_queues(observer.keys, names, most)
        if not are_all:
            return now, None
    lines: Lines = {}
    for queue in queues:
        lines.update((yield from read_lines(observer, queue, most - len(lines))))
        if len(lines) > most:
            return now, None
    return now, lines


def read_lines(observer: Observer, queue: str, most: int = sys.maxsize) -> Plan[Lines]:
    """Return the lines of a queue; if there are more than ``most``, not all of them."""
    lines: Lines = {}  # a scan may return one twice
    names = list(observer.keys.queue(queue))
    cursor = b""
    while cursor != END and len(lines) <= most:
        call = Call(script("read_lines"), names, [observer.now(), cursor or "0"])
        cursor, late, *rows = yield call
        for line, fan_out, weight, requirements, ranks in rows:
            costs = {
                _ref(name.decode(), field.decode()): float(cost)
                for name, field, cost in _tuples(requirements, 3)
            }
            by_rank = list(_tuples(ranks, 2))
            lines[line] = WaitingLine(fan_out.decode(), costs, by_rank, queue, late, weight)
    return lines


def _ref(name: str, field: str) -> LimitRef:
    return LimitRef(name, None if field == name else field[len(name) + 1 :])


def _tuples(flat: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return zip(*[iter(flat)] * size, strict=True)
