"""The events of one run of the demo, and its figures.

All times are of the monotonic clock, in seconds since the first plain task was due.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from celery_throttle.cli.shared.text import percentile
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
        rate: Any = self.limit.rate  # the demo refuses slots
        return float(rate.per_second)

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

    def figures(self) -> dict[str, Any]:
        """Return the figures of the run for JSON; None for what was not measured.

        Waits and latencies are the seconds from sending a task to its start.
        """
        latencies, delivered = self.latencies(), self.delivered
        return {
            "limit": str(self.limit),
            "server": self.server,
            "tasks": self.tasks,
            "tasks_ran": len(self.starts),
            "quota_used": self.quota_used(),
            "fullest_second": self.fullest_second(),
            "fullest_second_allowed": self.allowed,
            "deliveries_per_task": delivered.total() / len(delivered) if delivered else None,
            "wait_median_s": percentile(self.waits, 0.5),
            "wait_longest_s": percentile(self.waits, 1),
            "plain_tasks": len(latencies),
            "plain_median_s": percentile(latencies, 0.5),
            "plain_p99_s": percentile(latencies, 0.99),
        }
