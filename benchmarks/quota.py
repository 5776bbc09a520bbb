"""Use of the quota, fullest second, deliveries and lateness of two workers under one limit.

Two workers of each pool; all tasks are sent at once. ``race.py`` has what others make of such a
load.

*Quota used* is the time that the limit needs for the tasks beyond the burst, over the time from the
first start to the last. With keys it is that of the key that did worst; the fullest second too.

*Admissions* are what the server decided: see ``admissions.py``. The limits have a server of their
own, so that listening to it does not hold up the broker. A second is a closed interval and may hold
``burst + rate`` admissions.

*Lateness* is a start (the first line of the task's body) less the slot of its admission. The few
tasks that did not come out of a line are matched with the admissions in order, which can only make
them look later. *Deliveries* are messages that workers got from the broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.admissions import Admission, Monitor, admissions
from benchmarks.marks import Mark
from benchmarks.results import Figure, Options, Result, percentile
from benchmarks.stage import Stage, ready, wait_until
from celery_throttle.limits.limit import Limit

#: Pool -> how many tasks one of it runs at once.
SIZES = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 10, "eventlet": 10}


@dataclass(frozen=True, slots=True)
class Load:
    """Tasks for a limit, or for each key of it, and the pool that runs them."""

    limit: str
    tasks: int
    keys: int = 0
    pool: str = "prefork"

    def __str__(self) -> str:
        keys = f"{self.keys} keys of " if self.keys else ""
        return f"{self.pool} {SIZES[self.pool]}, {keys}{self.limit}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a load."""

    used: float
    fullest_admissions: int
    fullest_starts: int
    deliveries: float
    lateness: Sequence[float]


def run(options: Options) -> Result:
    """Measure all loads."""
    pick = options.pick
    many, others = pick(1000, 300), [pool for pool in SIZES if pool != "prefork"]
    loads = [
        Load("100/s", many),
        Load("100/s burst 20", many),
        Load("1/s", pick(12, 6)),
        Load("20/s", pick(200, 60), keys=10),
        *(Load("100/s", many, pool=pool) for pool in others),
        *(Load("2/s", pick(20, 8), keys=100, pool=pool) for pool in others),
    ]
    figures = [figure for load in loads for figure in _figures(load, options)]
    return Result(name="quota", theirs="", figures=figures)


def _figures(load: Load, options: Options) -> Iterator[Figure]:
    options.say(f"quota: {load}")
    one, limit = _measure(load), Limit.parse(load.limit)
    p, q = limit.ticks
    most, least = limit.burst + 1_000_000 * q // p, 0.97 if load.keys == 100 else 0.99
    yield Figure(f"{load}: quota used", "", one.used, at_least=least)
    yield Figure("  fullest second, admissions", "", one.fullest_admissions, at_most=most)
    yield Figure("  fullest second, starts", "", one.fullest_starts)
    yield Figure("  deliveries a task", "", one.deliveries, at_most=1)
    yield Figure("  start after admission, median", "ms", 1000 * percentile(one.lateness, 0.5))
    late = 1000 * percentile(one.lateness, 0.99)
    yield Figure("  start after admission, p99", "ms", late, at_most=20)


def _measure(load: Load) -> Outcome:
    """Send all tasks to two workers at once, and measure."""
    keys = [f"t{number}" for number in range(load.keys)]
    task, name = ("keyed", "tenant") if keys else ("limited", "api")
    total = load.tasks * max(1, load.keys)
    with Stage(api=load.limit, tenant=load.limit, own_store=True, watch=True) as stage:
        workers = [
            stage.worker("ours", processes=SIZES[load.pool], pool=load.pool) for _ in range(2)
        ]
        ready(workers)
        with Monitor(stage.store_url) as monitor:
            ids = stage.send(task, total, keys=keys)
            wait_until(
                lambda: sum(worker.count() for worker in workers) >= total, f"{total} starts"
            )
        starts = sorted((m for w in workers for m in w.marks()), key=lambda mark: mark.time)
        deliveries = sum(worker.count("deliveries") for worker in workers)
    limit = Limit.parse(load.limit)
    fields = [f"{name}:{key}" for key in keys] or [name]
    field_of = {task_id: fields[number % len(fields)] for number, task_id in enumerate(ids)}
    by_field = defaultdict(list)
    for start in starts:
        by_field[field_of[start.task_id]].append(start)
    admitted = admissions(monitor, {name: limit})
    return Outcome(
        used=min(used(some, limit) for some in by_field.values()),
        fullest_admissions=max(fullest([one.slot for one in some]) for some in admitted.values()),
        fullest_starts=max(fullest([one.time for one in some]) for some in by_field.values()),
        deliveries=deliveries / total,
        lateness=_lateness(by_field, admitted),
    )


def used(starts: Sequence[Mark], limit: Limit) -> float:
    """Return the share of the quota that was used between the first start and the last."""
    seconds = starts[-1].time - starts[0].time
    p, q = limit.ticks
    return (len(starts) - limit.burst) * p / q / 1e6 / seconds


def fullest(times: Sequence[float]) -> int:
    """Return the most times in a closed interval of one second."""
    most = first = 0
    ordered = sorted(round(time * 1e6) for time in times)
    for number, time in enumerate(ordered):
        while ordered[first] < time - 1_000_000:
            first += 1
        most = max(most, number - first + 1)
    return most


def _lateness(
    starts: Mapping[str, Sequence[Mark]], admitted: Mapping[str, Sequence[Admission]]
) -> list[float]:
    late = []
    for field, some in starts.items():
        slot_of = {one.task_id: one.slot for one in admitted[field] if one.task_id}
        others = iter([one.slot for one in admitted[field] if not one.task_id])
        late += [
            start.time - (slot_of[start.task_id] if start.task_id in slot_of else next(others))
            for start in some
        ]
    return late
