"""The table of all metrics: what each is called, what it means, and its values.

Every exporter goes by this table, so all of them show the same names and numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from celery_throttle.errors import ThrottleError
from celery_throttle.limits.shards import HOME
from celery_throttle.observe.merged import Reading
from celery_throttle.observe.metrics.figures import (
    Figures,
    LimitFigures,
    merge_figures,
    read_figures,
)
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status_text import lost_texts
from celery_throttle.observe.totals import WAIT_BOUNDS, Totals
from celery_throttle.operations.author import API
from celery_throttle.operations.plan import Plan

T = TypeVar("T")

logger = logging.getLogger(__name__)

PREFIX = "celery_throttle_"

#: Limits that a page of metrics shows by default.
MAX_LIMITS = 1000

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

#: A bucket of the histogram has two buckets of the counters: 0.1 s, 0.4 s, 1.6 s and so on.
_MERGED_BUCKETS = 2


class Histogram(NamedTuple):
    """The value of a histogram."""

    #: Pairs of an upper bound as text, and how many values are not above it.
    buckets: tuple[tuple[str, int], ...]
    sum: float


Value = float | Histogram

#: The values of each metric by its name, each with its labels.
Samples = Mapping[str, list[tuple[Mapping[str, str], Value]]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    #: Without :data:`PREFIX`. Only those of counters end in ``_total``, and only those of seconds
    #: contain that word.
    name: str
    help: str  #: what it counts or measures
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Its type: :data:`COUNTER`, :data:`GAUGE` or :data:`HISTOGRAM`."""
        if self.name == "wait_seconds":
            return HISTOGRAM
        return COUNTER if self.name.endswith("_total") else GAUGE


#: What each metric counts or measures, by its labels and its name.
_TABLE: Mapping[tuple[str, ...], Mapping[str, str]] = {
    (): {
        "up": "1 if the limits server answered, else 0.",
        "workers": "Live workers.",
        "limits_omitted": "Limits that this page leaves out, as there are more than it may show.",
        "rules_file_valid": (
            "0 if the rules file of a live worker has mistakes, else 1; absent without a rules "
            "file."
        ),
        "outage_seconds_total": (
            "Seconds that workers spent in outage mode, summed over workers, added when each ends."
        ),
    },
    ("queue",): {
        "tasks_runnable": (
            "Waiting tasks whose units are available now, but which no process takes."
        ),
    },
    ("queue", "reason"): {
        "tasks_stranded": (
            "Waiting tasks that no live worker can start. Reason: queue, limit or task."
        ),
    },
    ("limit",): {
        "limit_units_per_second": (
            "Units per second that the limit grants over the long run; absent for slots."
        ),
        "units_granted_total": "Units granted to calls and tasks.",
        "shadow_refusals_total": (
            "Allowed calls and tasks that the shadow clauses would have refused."
        ),
        "tasks_parked_total": "Tasks that joined a line.",
        "tasks_released_total": (
            "Tasks that a worker claimed from a line together with their units."
        ),
        "tasks_waiting": "Tasks that wait at the limit now.",
        "oldest_wait_seconds": (
            "Wait of the oldest waiting task; absent if no task waits; a lower bound with many "
            "keys."
        ),
        "wait_seconds": "Waits of the tasks that were claimed from lines. The sum is an estimate.",
        "forecast_seconds": (
            "Expected time until the last waiting task has started; absent if unknown."
        ),
        "next_due_seconds": (
            "Time until the limit next has room for a waiting task; absent if no task waits."
        ),
        "slots_in_force": (
            "Slots that may be in use at once; of an adaptive limit, the learned number; absent "
            "for rates."
        ),
        "slots_held": "Slots in use: without a key, and of the keys with the most waiting tasks.",
        "leases_expired_total": (
            "Claims and slots whose leases expired, as their workers or holders were lost."
        ),
    },
    ("limit", "reason"): {
        "refusals_total": (
            "Refused calls: by limit, slots, paused, keys or cost; api: requests that an API "
            "refused."
        ),
        "tasks_dropped_total": (
            "Tasks that did not join a line: late, full, keys, cost, surplus; or left it: "
            "replaced, revoked, purged, removed."
        ),
    },
    ("limit", "source"): {
        "pause_end_timestamp_seconds": (
            "End of the pause of the whole limit, +Inf if it has none. Source: api or user."
        ),
    },
}

#: All metrics, in the order of the page.
METRICS = tuple(
    Metric(name, about, labels) for labels, rows in _TABLE.items() for name, about in rows.items()
)


_LABELS = {metric.name: metric.labels for metric in METRICS}


def find_samples(shards: Mapping[str, Figures]) -> Samples:
    """Return the samples of all metrics; there is none where a figure is None.

    ``shards``: the figures by the label of the shard. A single one has no label.
    """
    found: dict[str, list[tuple[Mapping[str, str], Value]]] = {one.name: [] for one in METRICS}
    for shard, figures in shards.items():
        for name, labels, value in _find_values(figures):
            if value is not None:
                label = {"shard": shard} if len(shards) > 1 else {}
                named = dict(zip(_LABELS[name], labels, strict=True))
                found[name].append(({**named, **label}, value))
    return found


def _find_values(figures: Figures) -> Iterator[tuple[str, tuple[str, ...], Value | None]]:
    """Yield the name of a metric, the values of its labels, and its value, for all values."""
    yield "up", (), float(figures.up)
    yield "workers", (), figures.workers
    yield "limits_omitted", (), figures.omitted
    yield "rules_file_valid", (), figures.rules_valid
    yield "outage_seconds_total", (), figures.outage_seconds
    for queue, tasks in figures.runnable.items():
        yield "tasks_runnable", (queue,), tasks
    stranded: Counter[tuple[str, str]] = Counter()
    for one in figures.stranded:
        stranded[one.queue, one.why] += one.tasks or 0
    for labels, tasks in sorted(stranded.items()):
        yield "tasks_stranded", labels, tasks
    for limit in figures.limits:
        for name, label, value in _limit_values(limit):
            yield name, (limit.status.name, *label), value


def _limit_values(limit: LimitFigures) -> Iterator[tuple[str, tuple[str, ...], Value | None]]:
    """Yield the same of one limit, without the label of its name."""
    status, totals = limit.status, limit.status.totals
    yield "limit_units_per_second", (), limit.rate
    yield "units_granted_total", (), totals.granted
    yield "shadow_refusals_total", (), totals.shadow_refused
    yield "tasks_parked_total", (), totals.parked
    yield "tasks_released_total", (), totals.claimed
    yield "tasks_waiting", (), status.waiting
    yield "oldest_wait_seconds", (), limit.oldest
    yield "wait_seconds", (), _waits(totals)
    yield "forecast_seconds", (), limit.forecast
    yield "next_due_seconds", (), limit.next_due
    yield "slots_in_force", (), limit.slots_in_force
    yield "slots_held", (), limit.slots
    yield "leases_expired_total", (), totals.lost_claims + totals.lost_slots
    for reason, calls in (*totals.refused, ("api", totals.api_refusals)):
        yield "refusals_total", (reason,), calls
    left = (
        ("replaced", totals.replaced),
        ("revoked", totals.revoked),
        ("purged", totals.discarded),
        ("removed", totals.removed),
    )
    for reason, tasks in (*totals.dropped, *left):
        yield "tasks_dropped_total", (reason,), tasks
    for pause in status.pauses:
        source = "api" if pause.author is not None and pause.author.by == API else "user"
        end = inf if pause.until is None else pause.until.timestamp()
        yield "pause_end_timestamp_seconds", (source,), end


def _waits(totals: Totals) -> Histogram:
    bounds = (*map(str, WAIT_BOUNDS[:-1:_MERGED_BUCKETS]), "+Inf")
    counts = [0] * len(bounds)
    for n, tasks in enumerate(totals.waits):
        counts[(n + _MERGED_BUCKETS - 1) // _MERGED_BUCKETS] += tasks
    return Histogram(tuple(zip(bounds, accumulate(counts), strict=True)), totals.waited)


class Observed(Protocol):
    """What the metrics use of a limiter, or of the Throttle of an app.

    :meta private:
    """

    @property
    def own_broker(self) -> str:
        """The broker of the app's queues, as the names of queues begin; empty without an app."""

    def read(self, reader: Callable[[Observer], Plan[T]]) -> Reading[T]:
        """Run a plan that reads the status in each shard."""


class SampleSource:
    """Reads the samples of a limiter, one reader at a time. Thread-safe.

    ``max_limits``: the most limits to read, 1 or more; the first ones by name. ``max_age``: the
    seconds for which samples are kept.
    """

    def __init__(
        self, throttle: Observed, max_limits: int = MAX_LIMITS, max_age: float = 0.0
    ) -> None:
        self._throttle = throttle
        self._max_limits = max_limits
        self._max_age = max_age
        self._lock = threading.Lock()
        self._error = ""
        self._samples: Samples = {}
        self._read_at = -inf

    def read(self) -> Samples:
        """Return the samples. If a server does not answer, or refuses, that is logged once."""
        with self._lock:
            if time.monotonic() > self._read_at + self._max_age:
                self._samples = find_samples(self._read_figures())
                self._read_at = time.monotonic()
            return self._samples

    def _read_figures(self) -> dict[str, Figures]:
        """Return the figures of the shards, those of one setting together."""
        try:
            reading = self._throttle.read(lambda observer: read_figures(observer, self._max_limits))
        except ThrottleError as error:
            self._report(str(error))
            return {HOME: Figures()}
        self._report("; ".join(lost_texts(reading.lost)))
        parts: dict[str, list[Figures]] = {}
        lost = dict.fromkeys(reading.lost, Figures())
        for shard, figures in {**reading.values, **lost}.items():
            parts.setdefault(shard.partition("/")[0], []).append(figures)
        shards = {shard: merge_figures(some) for shard, some in parts.items()}
        return self._omit_limits(self._name_queues(shards))

    def _report(self, error: str) -> None:
        if error and error != self._error:
            logger.warning("The metrics have no values: %s", error)
        self._error = error

    def _name_queues(self, shards: Mapping[str, Figures]) -> dict[str, Figures]:
        queues = {queue for one in shards.values() for queue in one.runnable}
        queues |= {other.queue for one in shards.values() for other in one.stranded}
        shown = shown_queues(queues, self._throttle.own_broker)
        return {
            shard: replace(
                one,
                runnable={shown[queue]: tasks for queue, tasks in one.runnable.items()},
                stranded=tuple(replace(other, queue=shown[other.queue]) for other in one.stranded),
            )
            for shard, one in shards.items()
        }

    def _omit_limits(self, shards: Mapping[str, Figures]) -> dict[str, Figures]:
        """Leave out the last limits by name, if those of all shards are too many."""
        names = sorted(limit.status.name for one in shards.values() for limit in one.limits)
        left_out = {*names[self._max_limits :]}
        found = {}
        for shard, one in shards.items():
            limits = tuple(limit for limit in one.limits if limit.status.name not in left_out)
            omitted = None if one.omitted is None else one.omitted + len(one.limits) - len(limits)
            found[shard] = replace(one, limits=limits, omitted=omitted)
        return found


def shown_queues(queues: Iterable[str], own_broker: str) -> dict[str, str]:
    """Return the shown name of each queue that is named with its broker.

    Queues of ``own_broker`` are shown as Celery names them. If it is empty, as there is no app, so
    are all queues whose names are not those of two brokers.
    """
    bare = {
        queue: queue.removeprefix(own_broker) if own_broker else queue.split("/", 2)[-1]
        for queue in queues
    }
    counts = Counter(bare.values())
    return {queue: name if counts[name] == 1 else queue for queue, name in bare.items()}
