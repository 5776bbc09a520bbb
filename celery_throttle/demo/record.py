"""What happened in one run of the demo, and the figures that follow from it.

All times are of the monotonic clock, in seconds from the begin of the trickle.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from celery_throttle.limits.limit import Limit

#: Seconds for which only tasks without a limit run, so that one sees the difference.
LEAD = 1.0

#: Tasks without a limit that are sent in a second.
TRICKLE = 10

#: How many times faster than their limit allows the limited tasks are sent.
HURRY = 10


class Record:
    """One run: what was planned, and what the workers wrote down.

    Attributes:
        limit, tasks: the plan: so many tasks under this limit.
        server: what the server is.
        now: how long it has lasted.
        sent: how many of the tasks were sent.
        plain_sent: how many tasks without a limit were sent.
        delivered: task id to how often the broker delivered it to a worker; limited tasks only.
        starts: when limited tasks started, in order.
        waits: seconds from the sending of each limited task to its start.
        plain: when each task without a limit was sent, and when it started.
        waiting: when it was asked, and how many tasks waited in the line.
        ended: whether it is over.
    """

    def __init__(self, limit: Limit, tasks: int) -> None:
        self.limit = limit
        self.tasks = tasks
        self.server = ""
        self.began = 0.0
        self.now = 0.0
        self.sent = 0
        self.plain_sent = 0
        self.delivered: Counter[str] = Counter()
        self.starts: list[float] = []
        self.waits: list[float] = []
        self.plain: list[tuple[float, float]] = []
        self.waiting: list[tuple[float, int]] = []
        self.ended = False

    @property
    def rate(self) -> float:
        """What the limit allows in a second, in the long run."""
        p, q = self.limit.ticks
        return q * 1e6 / p

    @property
    def allowed(self) -> int:
        """What the limit allows in any one second."""
        return self.limit.burst + math.floor(self.rate)

    @property
    def planned(self) -> float:
        """Seconds it should last."""
        return LEAD + self.tasks / self.rate + 0.5

    def add(self, entry: bytes) -> None:
        """Take over an entry of the workers' notebook; see ``tasks.py``."""
        word, *about = entry.decode().split()
        if word == "delivered":
            self.delivered.update(about)
            return
        sent, started = (float(time) - self.began for time in about)
        if word == "limited":
            insort(self.starts, started)
            self.waits.append(started - sent)
        else:
            self.plain.append((sent, started))

    def per_second(self, end: float, seconds: float = 1.0) -> float:
        """Starts of limited tasks per second, over some seconds up to ``end``."""
        first = bisect_right(self.starts, end - seconds)
        return (bisect_right(self.starts, end) - first) / seconds

    def fullest_second(self) -> int:
        """The most starts in any one second, its two ends included."""
        ordered = [round(at * 1e6) for at in self.starts]
        most = 0
        for number, at in enumerate(ordered, 1):
            most = max(most, number - bisect_left(ordered, at - 1_000_000))
        return most

    def quota_used(self) -> float | None:
        """The time the limit needs for the tasks beyond its burst, over the time they took.

        A start comes some milliseconds after its admission, and not always as many: what that
        would add above 1 is no quota. Where a limit is overrun, the fullest second shows it.
        """
        beyond = len(self.starts) - self.limit.burst
        if beyond <= 0:
            return None
        return min(1.0, beyond / self.rate / (self.starts[-1] - self.starts[0]))

    def deliveries_per_task(self) -> float | None:
        """By the broker, of the limited tasks that it has delivered."""
        return self.delivered.total() / len(self.delivered) if self.delivered else None

    def latencies(self) -> list[float]:
        """Of the tasks without a limit that were sent while limited ones waited for their turn."""
        over = self.starts[-1] if len(self.starts) == self.tasks else self.now
        return [started - sent for sent, started in self.plain if LEAD <= sent <= over]

    def summary(self) -> Summary:
        """The figures."""
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
    """The figures of a run; None where nothing was measured.

    Attributes:
        limit: the limit as text.
        server: name and version of the server.
        tasks, tasks_ran: how many there were under the limit, and how many ran.
        quota_used: see :meth:`Record.quota_used`.
        fullest_second: the most starts in any one second.
        fullest_second_allowed: what the limit allows there: its burst and the rate.
        deliveries_per_task: by the broker, of tasks under the limit.
        wait_median_s, wait_longest_s: from sending a task under the limit to its start.
        plain_tasks: how many tasks without a limit were sent while others waited.
        plain_median_ms, plain_p99_ms: from sending one of these to its start.
    """

    limit: str
    server: str
    tasks: int
    tasks_ran: int
    quota_used: float | None
    fullest_second: int
    fullest_second_allowed: int
    deliveries_per_task: float | None
    wait_median_s: float | None
    wait_longest_s: float | None
    plain_tasks: int
    plain_median_ms: float | None
    plain_p99_ms: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is not below this share of them; None if there are none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def figure(value: float | None, form: str) -> str:
    """A figure as text; a dash where nothing was measured."""
    return "-" if value is None else form.format(value)


def _rounded(value: float | None, digits: int, scale: float = 1) -> float | None:
    return None if value is None else round(value * scale, digits)
