"""The events of one run of the demo, and its figures.

All times are of the monotonic clock, in seconds since the first plain task was due.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from celery_throttle.limits.limit import Limit

#: Seconds in which only plain tasks run, to show the difference.
LEAD_SECONDS = 1.0

#: Rate at which plain tasks, those without a limit, are sent.
PLAIN_TASKS_PER_SECOND = 10

#: Limited tasks are sent at this multiple of the rate of their limit.
SEND_RATE_FACTOR = 10


@dataclass(eq=False)
class Record:
    """One run: its plan, and the events that the workers recorded."""

    limit: Limit
    tasks: int  #: the plan: the number of tasks under this limit
    server: str = ""  #: name and version of the server
    began: float = 0.0
    now: float = 0.0  #: seconds since the begin
    sent: int = 0  #: number of limited tasks sent
    plain_sent: int = 0
    #: Task id to number of deliveries by the broker, of limited tasks.
    delivered: Counter[str] = field(default_factory=Counter)
    starts: list[float] = field(default_factory=list)  #: of limited tasks, in order
    waits: list[float] = field(default_factory=list)  #: seconds to the start of each limited task
    #: Times of sending and start, of each plain task.
    plain: list[tuple[float, float]] = field(default_factory=list)
    #: Pairs of a time and the number of tasks in the line.
    waiting: list[tuple[float, int]] = field(default_factory=list)
    ended: bool = False

    @property
    def rate(self) -> float:
        """Tasks per second that the limit allows in the long run."""
        p, q = self.limit.ticks
        return q * 1e6 / p

    @property
    def allowed(self) -> int:
        """Tasks that the limit allows in any one second."""
        return self.limit.burst + math.floor(self.rate)

    @property
    def planned(self) -> float:
        """Seconds that the run should last."""
        return LEAD_SECONDS + self.tasks / self.rate + 0.5

    def add(self, event: bytes) -> None:
        """Add an event of a worker; see ``tasks.py``."""
        kind, *words = event.decode().split()
        if kind == "delivered":
            self.delivered.update(words)
            return
        sent, started = (float(time) - self.began for time in words)
        if kind == "limited":
            insort(self.starts, started)
            self.waits.append(started - sent)
        else:
            self.plain.append((sent, started))

    def per_second(self, end: float, seconds: float = 1.0) -> float:
        """Return starts of limited tasks per second, in the ``seconds`` before ``end``."""
        first = bisect_right(self.starts, end - seconds)
        return (bisect_right(self.starts, end) - first) / seconds

    def fullest_second(self) -> int:
        """Return the most starts in any closed interval of one second."""
        ordered = [round(at * 1e6) for at in self.starts]
        most = 0
        for number, at in enumerate(ordered, 1):
            most = max(most, number - bisect_left(ordered, at - 1_000_000))
        return most

    def quota_used(self) -> float | None:
        """Return the time that the limit needs for the tasks beyond its burst, over their time.

        A start follows its admission by a few milliseconds, which vary and could make it exceed
        1. If a limit is exceeded, the fullest second shows it.
        """
        beyond = len(self.starts) - self.limit.burst
        if beyond <= 0:
            return None
        return min(1.0, beyond / self.rate / (self.starts[-1] - self.starts[0]))

    def deliveries_per_task(self) -> float | None:
        """Return the mean number of deliveries of a limited task by the broker."""
        return self.delivered.total() / len(self.delivered) if self.delivered else None

    def latencies(self) -> list[float]:
        """Return the latencies of plain tasks that were sent while limited tasks waited."""
        end = self.starts[-1] if len(self.starts) == self.tasks else self.now
        return [started - sent for sent, started in self.plain if LEAD_SECONDS <= sent <= end]

    def summary(self) -> Summary:
        """Return the figures."""
        latencies = self.latencies()
        ran = len(self.starts)
        return Summary(
            limit=str(self.limit),
            server=self.server,
            tasks=self.tasks,
            tasks_ran=ran,
            quota_used=_rounded(self.quota_used(), 4),
            fullest_second=self.fullest_second(),
            fullest_second_allowed=self.allowed,
            deliveries_per_task=_rounded(self.deliveries_per_task(), 3),
            wait_median_s=_rounded(percentile(self.waits, 0.5), 3),
            wait_longest_s=_rounded(percentile(self.waits, 1), 3),
            plain_tasks=len(latencies),
            plain_median_ms=_rounded(percentile(latencies, 0.5), 1, 1000),
            plain_p99_ms=_rounded(percentile(latencies, 0.99), 1, 1000),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run; None for what was not measured."""

    limit: str
    server: str
    tasks: int
    tasks_ran: int
    quota_used: float | None  #: see :meth:`Record.quota_used`
    fullest_second: int  #: the most starts in any one second
    fullest_second_allowed: int  #: what the limit allows in a second: burst and rate
    deliveries_per_task: float | None
    wait_median_s: float | None  #: from sending a limited task to its start
    wait_longest_s: float | None
    plain_tasks: int  #: number of plain tasks that were sent while limited tasks waited
    plain_median_ms: float | None  #: from sending one of these to its start
    plain_p99_ms: float | None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the percentile by nearest rank, ``share`` from 0 to 1; None if there are no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def round_steps() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    return (factor * 10**digits for digits in count() for factor in (1, 2, 5))


def format_figure(value: float | None, form: str) -> str:
    """Return a figure as text; a dash if it was not measured."""
    return "-" if value is None else form.format(value)


def _rounded(value: float | None, digits: int, scale: float = 1) -> float | None:
    return None if value is None else round(value * scale, digits)
