"""The table of all metrics: what each is called, what it means, and its values.

Every exporter goes by this table, so all of them show the same names and numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple

from celery_throttle.observe.metrics.figures import Figures, LimitFigures
from celery_throttle.observe.totals import WAIT_BOUNDS, Totals
from celery_throttle.observe.values import Pause
from celery_throttle.operations.author import API

#: The prefix of all names.
PREFIX = "celery_throttle_"

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

#: A bucket of the histogram has two buckets of the counters: 0.1 s, 0.4 s, 1.6 s and so on.
_MERGED_BUCKETS = 2


class Histogram(NamedTuple):
    """The value of a histogram.

    Attributes:
        buckets: pairs of an upper bound, and how many values are not above it.
        sum: the sum of all values.
    """

    buckets: tuple[tuple[float, int], ...]
    sum: float


class Sample(NamedTuple):
    """One value of a metric, with a value for each of its labels."""

    labels: tuple[str, ...]
    value: float | Histogram


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: without :data:`PREFIX`.
        kind: :data:`COUNTER`, :data:`GAUGE` or :data:`HISTOGRAM`.
        unit: of its values, such as ``"seconds"``; empty for a number without a unit.
        help: what it counts or measures.
        labels: the names of its labels.
        read: returns its samples; of None, if the server did not answer.
    """

    name: str
    kind: str
    unit: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Figures | None], Iterable[Sample]]


def _of_fleet(value: Callable[[Figures], float | None]) -> Callable[..., Iterator[Sample]]:
    """Return a reader of one value of the whole server; none if it is None."""

    def read(figures: Figures | None) -> Iterator[Sample]:
        found = None if figures is None else value(figures)
        if found is not None:
            yield Sample((), found)

    return read


def _of_limits(
    value: Callable[[LimitFigures], float | Histogram | None],
) -> Callable[..., Iterator[Sample]]:
    """Return a reader of one value of each limit; none of those for which it is None."""

    def read(figures: Figures | None) -> Iterator[Sample]:
        for limit in () if figures is None else figures.limits:
            found = value(limit)
            if found is not None:
                yield Sample((limit.status.name,), found)

    return read


def _of_totals(
    value: Callable[[Totals], float | Histogram | None],
) -> Callable[..., Iterator[Sample]]:
    """Return a reader of one of the totals of each limit."""
    return _of_limits(lambda limit: value(limit.status.totals))


def _by_reason(
    values: Callable[[Totals], Sequence[tuple[str, int]]],
) -> Callable[..., Iterator[Sample]]:
    """Return a reader of a value of each limit and reason."""

    def read(figures: Figures | None) -> Iterator[Sample]:
        for limit in () if figures is None else figures.limits:
            for reason, count in values(limit.status.totals):
                yield Sample((limit.status.name, reason), count)

    return read


def _read_up(figures: Figures | None) -> Iterator[Sample]:
    yield Sample((), float(figures is not None))


def _read_runnable(figures: Figures | None) -> Iterator[Sample]:
    for queue, tasks in () if figures is None else figures.runnable.items():
        yield Sample((queue,), tasks)


def _read_stranded(figures: Figures | None) -> Iterator[Sample]:
    tasks: Counter[tuple[str, str]] = Counter()
    for one in () if figures is None else figures.stranded:
        tasks[one.queue, one.why] += one.tasks or 0
    for labels, number in sorted(tasks.items()):
        yield Sample(labels, number)


def _read_pauses(figures: Figures | None) -> Iterator[Sample]:
    for limit in () if figures is None else figures.limits:
        for pause in limit.status.pauses:
            end = inf if pause.until is None else pause.until.timestamp()
            yield Sample((limit.status.name, _source_of(pause)), end)


def _source_of(pause: Pause) -> str:
    return "api" if pause.author is not None and pause.author.by == API else "user"


def _refusals(totals: Totals) -> Sequence[tuple[str, int]]:
    return (*totals.refused, ("api", totals.api_refusals))


def _drops(totals: Totals) -> Sequence[tuple[str, int]]:
    removals = (
        ("revoked", totals.revoked),
        ("purged", totals.discarded),
        ("removed", totals.removed),
    )
    return (*totals.dropped, *removals)


def _waits(totals: Totals) -> Histogram:
    bounds = (*WAIT_BOUNDS[:-1:_MERGED_BUCKETS], inf)
    counts = [0] * len(bounds)
    for n, tasks in enumerate(totals.waits):
        counts[(n + _MERGED_BUCKETS - 1) // _MERGED_BUCKETS] += tasks
    return Histogram(tuple(zip(bounds, accumulate(counts), strict=True)), totals.waited)


#: All metrics, in the order of the page.
METRICS = (
    Metric("up", GAUGE, "", "1 if the limits server answered, else 0.", (), _read_up),
    Metric("workers", GAUGE, "", "Live workers.", (), _of_fleet(lambda figures: figures.workers)),
    Metric(
        "limits_omitted",
        GAUGE,
        "",
        "Limits that this page leaves out, as there are more than it may show.",
        (),
        _of_fleet(lambda figures: figures.omitted),
    ),
    Metric(
        "rules_file_valid",
        GAUGE,
        "",
        "0 if the rules file of a live worker has mistakes, else 1; absent without a rules file.",
        (),
        _of_fleet(lambda figures: figures.rules_valid),
    ),
    Metric(
        "outage_seconds_total",
        COUNTER,
        "seconds",
        "Seconds that workers spent in outage mode, summed over workers, added when each ends.",
        (),
        _of_fleet(lambda figures: figures.outage_seconds),
    ),
    Metric(
        "tasks_runnable",
        GAUGE,
        "",
        "Waiting tasks whose units are available now, but which no process takes.",
        ("queue",),
        _read_runnable,
    ),
    Metric(
        "tasks_stranded",
        GAUGE,
        "",
        "Waiting tasks that no live worker can start. Reason: queue, limit or task.",
        ("queue", "reason"),
        _read_stranded,
    ),
    Metric(
        "limit_units_per_second",
        GAUGE,
        "",
        "Units per second that the limit grants over the long run; absent for slots.",
        ("limit",),
        _of_limits(lambda limit: limit.rate),
    ),
    Metric(
        "units_granted_total",
        COUNTER,
        "",
        "Units granted to calls and tasks.",
        ("limit",),
        _of_totals(lambda totals: totals.granted),
    ),
    Metric(
        "refusals_total",
        COUNTER,
        "",
        "Refused calls: by limit, slots, paused, keys or cost; api: requests that an API refused.",
        ("limit", "reason"),
        _by_reason(_refusals),
    ),
    Metric(
        "shadow_refusals_total",
        COUNTER,
        "",
        "Allowed calls and tasks that the shadow clauses would have refused.",
        ("limit",),
        _of_totals(lambda totals: totals.shadow_refused),
    ),
    Metric(
        "tasks_parked_total",
        COUNTER,
        "",
        "Tasks that joined a line.",
        ("limit",),
        _of_totals(lambda totals: totals.parked),
    ),
    Metric(
        "tasks_released_total",
        COUNTER,
        "",
        "Tasks that a worker claimed from a line together with their units.",
        ("limit",),
        _of_totals(lambda totals: totals.claimed),
    ),
    Metric(
        "tasks_dropped_total",
        COUNTER,
        "",
        "Tasks that did not join a line: late, full, keys, cost; or left it: revoked, purged, "
        "removed.",
        ("limit", "reason"),
        _by_reason(_drops),
    ),
    Metric(
        "tasks_waiting",
        GAUGE,
        "",
        "Tasks that wait at the limit now.",
        ("limit",),
        _of_limits(lambda limit: limit.status.waiting),
    ),
    Metric(
        "oldest_wait_seconds",
        GAUGE,
        "seconds",
        "Wait of the oldest waiting task; absent if no task waits; a lower bound with many keys.",
        ("limit",),
        _of_limits(lambda limit: limit.oldest),
    ),
    Metric(
        "wait_seconds",
        HISTOGRAM,
        "seconds",
        "Waits of the tasks that were claimed from lines. The sum is an estimate.",
        ("limit",),
        _of_totals(_waits),
    ),
    Metric(
        "forecast_seconds",
        GAUGE,
        "seconds",
        "Expected time until the last waiting task has started; absent if unknown.",
        ("limit",),
        _of_limits(lambda limit: limit.forecast),
    ),
    Metric(
        "next_due_seconds",
        GAUGE,
        "seconds",
        "Time until the limit next has room for a waiting task; absent if no task waits.",
        ("limit",),
        _of_limits(lambda limit: limit.next_due),
    ),
    Metric(
        "pause_end_timestamp_seconds",
        GAUGE,
        "seconds",
        "End of the pause of the whole limit, +Inf if it has none. Source: api or user.",
        ("limit", "source"),
        _read_pauses,
    ),
    Metric(
        "slots_held",
        GAUGE,
        "",
        "Slots in use: without a key, and of the keys with the most waiting tasks.",
        ("limit",),
        _of_limits(lambda limit: limit.slots),
    ),
    Metric(
        "leases_expired_total",
        COUNTER,
        "",
        "Claims and slots whose leases expired, as their workers or holders were lost.",
        ("limit",),
        _of_totals(lambda totals: totals.lost_claims + totals.lost_slots),
    ),
)
