"""The events of one run of the demo, and its figures.

All times are of the monotonic clock, in seconds since the first plain task was due.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field

from celery_throttle.cli.shared.text import format_figure, percentile
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
    events: int = 0  #: number of events that were added
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

    @property
    def is_complete(self) -> bool:
        """Whether all tasks have started."""
        return len(self.starts) >= self.tasks and len(self.plain) >= self.plain_sent

    def add(self, event: bytes) -> None:
        """Add an event of a worker; see ``tasks.py``."""
        self.events += 1
        kind, *words = event.decode().split()
        if kind == "delivered":
            self.delivered.update(words)
        elif kind != "ready":
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
        us = [round(at * 1e6) for at in self.starts]
        ends = (bisect_right(us, at + 1_000_000) for at in us)
        return max((end - first for first, end in enumerate(ends)), default=0)

    def quota_used(self) -> float | None:
        """Return the time that the limit needs for the tasks beyond its burst, over their time.

        A start follows its admission by a few milliseconds, which vary and could make it exceed
        1. If a limit is exceeded, the fullest second shows it.
        """
        beyond = len(self.starts) - self.limit.burst
        if beyond <= 0:
            return None
        return min(1.0, beyond / self.rate / (self.starts[-1] - self.starts[0]))

    def latencies(self) -> list[float]:
        """Return the latencies of plain tasks that were sent while limited tasks waited."""
        end = self.starts[-1] if len(self.starts) == self.tasks else self.now
        return [started - sent for sent, started in self.plain if LEAD_SECONDS <= sent <= end]

    def summary(self) -> Summary:
        """Return the figures."""
        latencies, delivered = self.latencies(), self.delivered
        return Summary(
            limit=str(self.limit),
            server=self.server,
            tasks=self.tasks,
            tasks_ran=len(self.starts),
            quota_used=self.quota_used(),
            fullest_second=self.fullest_second(),
            fullest_second_allowed=self.allowed,
            deliveries_per_task=delivered.total() / len(delivered) if delivered else None,
            wait_median_s=percentile(self.waits, 0.5),
            wait_longest_s=percentile(self.waits, 1),
            plain_tasks=len(latencies),
            plain_median_s=percentile(latencies, 0.5),
            plain_p99_s=percentile(latencies, 0.99),
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
    plain_median_s: float | None  #: from sending one of these to its start
    plain_p99_s: float | None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the figures in words, with their names."""
        allowed = f"{self.fullest_second} starts, {self.fullest_second_allowed} allowed"
        waits = (
            format_figure(one, "{:.1f} s") for one in (self.wait_median_s, self.wait_longest_s)
        )
        return [
            ("tasks under the limit", f"{self.tasks_ran} of {self.tasks} ran, {self.limit}"),
            ("quota used", format_figure(self.quota_used, "{:.1%}")),
            ("fullest second", allowed),
            ("broker deliveries per task", format_figure(self.deliveries_per_task, "{:.2f}")),
            ("wait under the limit", "median {}, longest {}".format(*waits)),
            ("latency without a limit", f"{self.latency_text()}, while the others waited"),
        ]

    def latency_text(self) -> str:
        """Return ``"median 8.1 ms, p99 17.4 ms"``."""
        return f"median {format_ms(self.plain_median_s)}, p99 {format_ms(self.plain_p99_s)}"


def format_ms(seconds: float | None) -> str:
    """Return seconds as milliseconds: ``"8.1 ms"``; a dash if they were not measured."""
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
