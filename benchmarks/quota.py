"""Use of the quota, fullest second, deliveries and lateness of two workers under one limit.

Two prefork workers with two processes each; all tasks are sent at once. Theirs is the retry recipe
(``apps/recipe.py``): the same tasks under the same limit, run right after ours.

*Quota used* is the time that the limit needs for the tasks beyond the burst, over the time from the
first start to the last. With keys it is that of the key that did worst; the fullest second too.

*Admissions* are what the server decided: see ``admissions.py``. The limits have a server of their
own, so that listening to it does not hold up the broker. A second is a closed interval and may hold
``burst + rate`` admissions.

*Lateness* is a start (the first line of the task's body) less the slot of its admission. Tasks that
did not come out of a line, few of ours and all of theirs, are matched with the admissions in order,
which can only make them look later. *Deliveries* are messages that workers got from the broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.admissions import Admission, Monitor, admissions
from benchmarks.marks import Mark
from benchmarks.results import Figure, Options, Result, percentile
from benchmarks.stage import Stage, ready, wait_until
from celery_throttle.limits.limit import Limit


@dataclass(frozen=True, slots=True)
class Load:
    """Tasks to run: a number for a limit, or for each key of it."""

    limit: str
    tasks: int
    keys: int = 0
    recipe: bool = True

    def __str__(self) -> str:
        keys = f"{self.keys} keys of " if self.keys else ""
        return f"{keys}{self.limit}, {self.tasks * max(1, self.keys)} tasks"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a load."""

    used: float
    fullest_admissions: int
    fullest_starts: int
    deliveries: float
    lateness: Sequence[float]

    def late(self, share: float) -> float:
        """Return the percentile of the lateness in milliseconds."""
        return percentile(self.lateness, share) * 1000


def run(options: Options) -> Result:
    """Measure all loads."""
    pick = options.pick
    loads = [
        Load("100/s", pick(1000, 300)),
        Load("100/s burst 20", pick(1000, 300)),
        Load("1/s", pick(12, 6)),
        Load("20/s", pick(200, 60), keys=10, recipe=False),
    ]
    return Result(
        name="quota",
        theirs="before_start asks the same limit, then self.retry(countdown=retry_after)",
        figures=[figure for load in loads for figure in _figures(load, options)],
    )


def _figures(load: Load, options: Options) -> list[Figure]:
    options.say(f"quota: {load}")
    ours = measure("ours", load)
    theirs = measure("recipe", load) if load.recipe else None
    limit = Limit.parse(load.limit)
    p, q = limit.ticks

    def figure(
        name: str,
        of: Callable[[Outcome], float],
        unit: str = "",
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Figure:
        return Figure(name, unit, of(ours), of(theirs) if theirs else None, at_least, at_most)

    return [
        figure(f"{load}: quota used", lambda one: one.used, at_least=0.99),
        figure(
            "  fullest second, admissions",
            lambda one: one.fullest_admissions,
            at_most=limit.burst + 1_000_000 * q // p,
        ),
        figure("  fullest second, starts", lambda one: one.fullest_starts),
        figure("  deliveries a task", lambda one: one.deliveries, at_most=1),
        figure("  start after admission, median", lambda one: one.late(0.5), "ms"),
        figure("  start after admission, p99", lambda one: one.late(0.99), "ms", at_most=20),
    ]


def measure(app: str, load: Load, pool: str = "prefork", size: int = 2) -> Outcome:
    """Send all tasks to two workers at once, and measure."""
    keys = [f"t{number}" for number in range(load.keys)]
    task, name = ("keyed", "tenant") if keys else ("limited", "api")
    total = load.tasks * max(1, load.keys)
    with Stage(api=load.limit, tenant=load.limit, own_store=True, watch=True) as stage:
        workers = [stage.worker(app, processes=size, pool=pool) for _ in range(2)]
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
