"""Workers in virtual time: they poll, run tasks and report by the real scripts, at given times.

What they decide is in `worker/claims/poller.py`. Their loops may be late: each timer fires some
microseconds after its time. A worker can be stopped for good.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise

from celery_throttle.worker import tuning
from tests.protocol import SECOND, Claimed, Protocol

HORIZON = round(tuning.BOOKING_HORIZON_SECONDS * SECOND)
SHORT_TASK = round(tuning.SOON_FREE_SECONDS * SECOND)
WAKE_UP_DELAY = round(tuning.MIN_WAKEUP_INTERVAL_SECONDS * SECOND)
REPORT_DELAY = round(tuning.SETTLE_REPORT_SECONDS * SECOND)


@dataclass
class Worker:
    """What one worker knows. Times are microseconds."""

    name: str
    free: int  #: processes, less the tasks that run and those that are booked
    idle: int  #: processes that run no task
    poll_at: int | None = None
    report_at: int | None = None
    replied_at: int = 0
    is_queued: bool = False  #: whether it polls as soon as a process is free
    is_expected: bool = False  #: whether others expect it to poll
    is_stopped: bool = False
    settled: list[int] = field(default_factory=list)
    #: Tokens of tasks for which no process was free at their start, with that time.
    queue: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Workers:
    """Runs tasks of one length, for workers with some processes each."""

    lines: Protocol
    number: int
    processes: int = 1
    task: int = 5_000  #: the length (us) of a task
    lateness: Callable[[], int] = lambda: 0
    #: Calls by kind: that found something or nothing, that passed a poll or only settled.
    calls: Counter[str] = field(default_factory=Counter)
    #: The times of the starts, by limit and key.
    starts: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    longest_delay: int = 0  #: of a start, until a process was free

    def __post_init__(self) -> None:
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.all = [
            Worker(f"w{number}", self.processes, self.processes) for number in range(self.number)
        ]
        for number, worker in enumerate(self.all):
            self._set_poll(worker, self.lines.now + 1_000 * number)

    def run(self, seconds: float) -> None:
        """Let the workers run for some seconds."""
        lines, end = self.lines, self.lines.now + round(seconds * SECOND)
        with self._listen() as self._hear:
            while self._events and self._events[0][0] < end:
                at, _, event = heapq.heappop(self._events)
                lines.now = max(lines.now, at)
                event()
        lines.now = end

    def wake(self, worker: Worker) -> None:
        """Let a worker poll now, such as one that had been stopped."""
        worker.poll_at = None
        self._set_poll(worker, self.lines.now)

    def used(self, spacing: float, since: int = 0) -> float:
        """Return the share of the quota that was used by the limit or key that did worst."""
        shares = []
        for starts in self.starts.values():
            times = sorted(start for start in starts if start >= since)
            shares.append((len(times) - 1) * spacing / (times[-1] - times[0]))
        return min(shares)

    def gaps(self) -> list[int]:
        """Return the times between two starts of the limit, in their order."""
        [times] = self.starts.values()
        return [after - before for before, after in pairwise(sorted(times))]

    def _later(self, at: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    @contextmanager
    def _listen(self) -> Iterator[Callable[[], None]]:
        """Subscribe to the channels of the workers; what is yielded hands out their wake-ups."""
        lines = self.lines
        by_channel = {lines.keys.wakeup_channel(worker.name): worker for worker in self.all}
        with lines.client.pubsub() as channels:
            channels.subscribe(*by_channel)
            for _ in by_channel:
                channels.get_message(timeout=5)

            def hear() -> None:
                channels.ping()
                while (message := channels.get_message(timeout=5))["type"] != "pong":
                    worker = by_channel[message["channel"].decode()]
                    recent = lines.now - worker.replied_at < WAKE_UP_DELAY
                    self._set_poll(worker, lines.now + WAKE_UP_DELAY * recent)

            yield hear

    def _set_poll(self, worker: Worker, at: int) -> None:
        if worker.poll_at is None or at < worker.poll_at:
            worker.poll_at = at
            self._later(at + self.lateness(), lambda: self._poll_next(worker))

    def _poll_next(self, worker: Worker) -> None:
        now, at = self.lines.now, worker.poll_at
        if worker.is_stopped or at is None or at > now:
            return
        if worker.free > 0:
            worker.poll_at = None
            self._poll(worker)
            return
        worker.is_queued = True
        if worker.is_expected:
            worker.is_expected = False
            self._call(worker, "pass", ("q",))

    def _poll(self, worker: Worker) -> None:
        now, free = self.lines.now, worker.free
        soon_free = self.processes - free if self.task <= SHORT_TASK else 0
        for row in self._call(worker, "found", ("q",), free + soon_free, free):
            self.starts[row.field].append(now + row.starts)
            worker.free -= 1
            self._later(now + row.starts, partial(self._begin, worker, row.token, now + row.starts))
        worker.is_expected = self.lines.ask > 0 and worker.free > 0
        self._set_poll(worker, now + max(0, self.lines.ask))

    def _begin(self, worker: Worker, token: int, at: int) -> None:
        if worker.idle == 0:
            worker.queue.append((token, at))
            return
        worker.idle -= 1
        self.longest_delay = max(self.longest_delay, self.lines.now - at)
        self._later(self.lines.now + self.task, partial(self._end, worker, token))

    def _end(self, worker: Worker, token: int) -> None:
        worker.free += 1
        worker.idle += 1
        worker.settled.append(token)
        if worker.report_at is None:
            worker.report_at = self.lines.now + REPORT_DELAY
            self._later(worker.report_at, lambda: self._report(worker))
        if worker.queue:
            self._begin(worker, *worker.queue.pop(0))
        if worker.is_queued and worker.free > 0:
            worker.is_queued = False
            self._poll_next(worker)

    def _report(self, worker: Worker) -> None:
        at = worker.report_at
        if not worker.is_stopped and at is not None and at <= self.lines.now:
            self._call(worker, "settle", ())

    def _call(
        self, worker: Worker, kind: str, queues: tuple[str, ...], room: int = 0, free: int = 0
    ) -> list[Claimed]:
        settled, worker.settled, worker.report_at = worker.settled, [], None
        lines = self.lines
        rows = lines.claim(
            worker.name,
            room,
            queues=queues,
            ahead=HORIZON,
            free=free,
            moment=HORIZON,
            settled=settled,
        )
        self.calls["nothing" if kind == "found" and not rows else kind] += 1
        worker.replied_at = lines.now
        self._hear()
        return rows
