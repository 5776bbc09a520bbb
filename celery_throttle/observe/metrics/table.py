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
from celery_throttle.observe.values import LimitStatus
from celery_throttle.operations.author import API

#: The prefix of all names.
PREFIX = "celery_throttle_"

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

#: A bucket of the histogram has two buckets of the counters: 0.1 s, 0.4 s, 1.6 s and so on.
_MERGED_BUCKETS = 2


class Histogram(NamedTuple):
    """The value of a histogram.

    Attributes:
        buckets: pairs of an upper bound as text, and how many values are not above it.
        sum: the sum of all values.
    """

    buckets: tuple[tuple[str, int], ...]
    sum: float


Value = float | Histogram

#: A value of a metric, with a value for each of its labels.
Sample = tuple[tuple[str, ...], Value]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: without :data:`PREFIX`. Only those of counters end in ``_total``, and only those of
            seconds contain that word.
        help: what it counts or measures.
        labels: the names of its labels.
        read: returns its samples.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Figures], Iterable[Sample]]

    @property
    def kind(self) -> str:
        """Its type: :data:`COUNTER`, :data:`GAUGE` or :data:`HISTOGRAM`."""
        if self.name == "wait_seconds":
            return HISTOGRAM
        return COUNTER if self.name.endswith("_total") else GAUGE

    @property
    def unit(self) -> str:
        """The unit of its values: ``"seconds"``, or empty for a number without a unit."""
        return "seconds" if "seconds" in self.name else ""


def _of_fleet(name: str, about: str, value: Callable[[Figures], float | None]) -> Metric:
    """Return a metric of the whole server; it has no sample if its value is None."""

    def read(figures: Figures) -> Iterator[Sample]:
        found = value(figures)
        if found is not None:
            yield (), float(found)

    return Metric(name, about, (), read)


def _of_limits(name: str, about: str, value: Callable[[LimitFigures], Value | None]) -> Metric:
    """Return a metric of each limit; it has no sample of those for which the value is None."""

    def read(figures: Figures) -> Iterator[Sample]:
        for limit in figures.limits:
            found = value(limit)
            if found is not None:
                yield (limit.status.name,), found

    return Metric(name, about, ("limit",), read)


def _of_totals(name: str, about: str, value: Callable[[Totals], Value]) -> Metric:
    """Return a metric of one of the totals of each limit."""
    return _of_limits(name, about, lambda limit: value(limit.status.totals))


def _by_label(
    name: str,
    about: str,
    label: str,
    values: Callable[[LimitStatus], Iterable[tuple[str, float]]],
) -> Metric:
    """Return a metric of each limit with a second label."""

    def read(figures: Figures) -> Iterator[Sample]:
        for limit in figures.limits:
            for second, value in values(limit.status):
                yield (limit.status.name, second), value

    return Metric(name, about, ("limit", label), read)


def _read_stranded(figures: Figures) -> Iterable[Sample]:
    tasks: Counter[tuple[str, ...]] = Counter()
    for one in figures.stranded:
        tasks[one.queue, one.why] += one.tasks or 0
    return sorted(tasks.items())


def _pauses(status: LimitStatus) -> Iterator[tuple[str, float]]:
    for pause in status.pauses:
        by_api = pause.author is not None and pause.author.by == API
        yield "api" if by_api else "user", inf if pause.until is None else pause.until.timestamp()


def _refusals(status: LimitStatus) -> Sequence[tuple[str, int]]:
    return (*status.totals.refused, ("api", status.totals.api_refusals))


def _drops(status: LimitStatus) -> Sequence[tuple[str, int]]:
    totals = status.totals
    removals = (
        ("revoked", totals.revoked),
        ("purged", totals.discarded),
        ("removed", totals.removed),
    )
    return (*totals.dropped, *removals)


def _waits(totals: Totals) -> Histogram:
    bounds = (*map(str, WAIT_BOUNDS[:-1:_MERGED_BUCKETS]), "+Inf")
    counts = [0] * len(bounds)
    for n, tasks in enumerate(totals.waits):
        counts[(n + _MERGED_BUCKETS - 1) // _MERGED_BUCKETS] += tasks
    return Histogram(tuple(zip(bounds, accumulate(counts), strict=True)), totals.waited)


#: All metrics, in the order of the page.
METRICS = (
    _of_fleet("up", "1 if the limits server answered, else 0.", lambda figures: figures.up),
    _of_fleet("workers", "Live workers.", lambda figures: figures.workers),
    _of_fleet(
        "limits_omitted",
        "Limits that this page leaves out, as there are more than it may show.",
        lambda figures: figures.omitted,
    ),
    _of_fleet(
        "rules_file_valid",
        "0 if the rules file of a live worker has mistakes, else 1; absent without a rules file.",
        lambda figures: figures.rules_valid,
    ),
    _of_fleet(
        "outage_seconds_total",
        "Seconds that workers spent in outage mode, summed over workers, added when each ends.",
        lambda figures: figures.outage_seconds,
    ),
    Metric(
        "tasks_runnable",
        "Waiting tasks whose units are available now, but which no process takes.",
        ("queue",),
        lambda figures: (((queue,), tasks) for queue, tasks in figures.runnable.items()),
    ),
    Metric(
        "tasks_stranded",
        "Waiting tasks that no live worker can start. Reason: queue, limit or task.",
        ("queue", "reason"),
        _read_stranded,
    ),
    _of_limits(
        "limit_units_per_second",
        "Units per second that the limit grants over the long run; absent for slots.",
        lambda limit: limit.rate,
    ),
    _of_totals(
        "units_granted_total", "Units granted to calls and tasks.", lambda totals: totals.granted
    ),
    _by_label(
        "refusals_total",
        "Refused calls: by limit, slots, paused, keys or cost; api: requests that an API refused.",
        "reason",
        _refusals,
    ),
    _of_totals(
        "shadow_refusals_total",
        "Allowed calls and tasks that the shadow clauses would have refused.",
        lambda totals: totals.shadow_refused,
    ),
    _of_totals("tasks_parked_total", "Tasks that joined a line.", lambda totals: totals.parked),
    _of_totals(
        "tasks_released_total",
        "Tasks that a worker claimed from a line together with their units.",
        lambda totals: totals.claimed,
    ),
    _by_label(
        "tasks_dropped_total",
        "Tasks that did not join a line: late, full, keys, cost; or left it: revoked, purged, "
        "removed.",
        "reason",
        _drops,
    ),
    _of_limits(
        "tasks_waiting",
        "Tasks that wait at the limit now.",
        lambda limit: limit.status.waiting,
    ),
    _of_limits(
        "oldest_wait_seconds",
        "Wait of the oldest waiting task; absent if no task waits; a lower bound with many keys.",
        lambda limit: limit.oldest,
    ),
    _of_totals(
        "wait_seconds",
        "Waits of the tasks that were claimed from lines. The sum is an estimate.",
        _waits,
    ),
    _of_limits(
        "forecast_seconds",
        "Expected time until the last waiting task has started; absent if unknown.",
        lambda limit: limit.forecast,
    ),
    _of_limits(
        "next_due_seconds",
        "Time until the limit next has room for a waiting task; absent if no task waits.",
        lambda limit: limit.next_due,
    ),
    _by_label(
        "pause_end_timestamp_seconds",
        "End of the pause of the whole limit, +Inf if it has none. Source: api or user.",
        "source",
        _pauses,
    ),
    _of_limits(
        "slots_held",
        "Slots in use: without a key, and of the keys with the most waiting tasks.",
        lambda limit: limit.slots,
    ),
    _of_totals(
        "leases_expired_total",
        "Claims and slots whose leases expired, as their workers or holders were lost.",
        lambda totals: totals.lost_claims + totals.lost_slots,
    ),
)
