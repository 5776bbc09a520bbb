"""Workers in virtual time: they poll, run tasks and report by the real scripts, at given times.

What they decide is in `worker/claims/poller.py`. Their loops may be late: each timer fires some
microseconds after its time. A worker can be stopped for good. With several shards, the most overdue
one is polled first, as long as a process is free.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise

from celery_throttle.worker import tuning
from tests.protocol import SECOND, Claimed, Protocol

HORIZON = round(tuning.BOOKING_HORIZON_SECONDS * SECOND)
SHORT_TASK = round(tuning.SOON_FREE_SECONDS * SECOND)
WAKE_UP_DELAY = round(tuning.MIN_WAKEUP_INTERVAL_SECONDS * SECOND)
REPORT_DELAY = round(tuning.SETTLE_REPORT_SECONDS * SECOND)


@dataclass(eq=False)
class Shard:
    """What a worker knows of one shard. Times are microseconds."""

    number: int
    poll_at: int | None = None
    report_at: int | None = None
    replied_at: int = 0
    is_expected: bool = False  #: whether others expect it to poll
    settled: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Worker:
    """What one worker knows. Times are microseconds."""

    name: str
    free: int  #: processes, less the tasks that run and those that are booked
    idle: int  #: processes that run no task
    shards: dict[int, Shard]  #: those that it polls, by number
    is_queued: bool = False  #: whether it polls as soon as a process is free
    is_stopped: bool = False
    #: Tasks for which no process was free at their start: shard, token and that time.
    queue: list[tuple[Shard, int, int]] = field(default_factory=list)


@dataclass
class Workers:
    """Runs tasks of one length, for workers with some processes each.

    ``lines`` may be several protocols, of the same clock: each is a shard. All workers poll all
    shards, or each shard has as many of its own.
    """

    lines: Protocol | Sequence[Protocol]
    number: int
    processes: int = 1
    task: int = 5_000  #: the length (us) of a task
    lateness: Callable[[], int] = lambda: 0
    poll_interval: float = tuning.MAX_POLL_INTERVAL_SECONDS
    apart: bool = False  #: whether each shard has workers of its own
    #: Calls by kind: that found something or nothing, that passed a poll or only settled.
    calls: Counter[str] = field(default_factory=Counter)
    #: Calls of each shard.
    calls_of: Counter[int] = field(default_factory=Counter)
    #: The times of the starts, by limit and key; of several shards by these and the shard.
    starts: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    longest_delay: int = 0  #: of a start, until a process was free

    def __post_init__(self) -> None:
        self._shards = [self.lines] if isinstance(self.lines, Protocol) else [*self.lines]
        self._clock = self._shards[0].clock
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        groups = [[shard] for shard in self._numbered()] if self.apart else [[*self._numbered()]]
        self.all = [
            Worker(
                f"w{number}",
                self.processes,
                self.processes,
                {shard: Shard(shard) for shard in shards},
            )
            for shards in groups
            for number in range(self.number)
        ]
        for number, worker in enumerate(self.all):
            for shard in worker.shards.values():
                self._set_poll(worker, shard, self._clock.now + 1_000 * (number % self.number))

    def run(self, seconds: float) -> None:
        """Let the workers run for some seconds."""
        clock, end = self._clock, self._clock.now + round(seconds * SECOND)
        with ExitStack() as channels:
            self._hear = [channels.enter_context(self._listen(shard)) for shard in self._numbered()]
            while self._events and self._events[0][0] < end:
                at, _, event = heapq.heappop(self._events)
                clock.now = max(clock.now, at)
                event()
        clock.now = end

    def _numbered(self) -> range:
        return range(len(self._shards))

    @property
    def now(self) -> int:
        return self._clock.now

    def wake(self, worker: Worker, *only: int) -> None:
        """Let a worker poll now, such as one that had been stopped, or only some of its shards."""
        for number in only or worker.shards:
            shard = worker.shards[number]
            shard.poll_at = None
            self._set_poll(worker, shard, self._clock.now)

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
    def _listen(self, number: int) -> Iterator[Callable[[], None]]:
        """Subscribe to the channels of a shard; what is yielded hands out their wake-ups."""
        lines = self._shards[number]
        by_channel = {
            lines.keys.wakeup_channel(worker.name): worker
            for worker in self.all
            if number in worker.shards
        }
        with lines.client.pubsub() as channels:
            channels.subscribe(*by_channel)
            for _ in by_channel:
                channels.get_message(timeout=5)

            def hear() -> None:
                channels.ping()
                while (message := channels.get_message(timeout=5))["type"] != "pong":
                    worker = by_channel[message["channel"].decode()]
                    shard, now = worker.shards[number], self._clock.now
                    recent = now - shard.replied_at < WAKE_UP_DELAY
                    self._set_poll(worker, shard, now + WAKE_UP_DELAY * recent)

            yield hear

    def _set_poll(self, worker: Worker, shard: Shard, at: int) -> None:
        if shard.poll_at is None or at < shard.poll_at:
            shard.poll_at = at
            self._later(at + self.lateness(), lambda: self._poll_next(worker))

    def _poll_next(self, worker: Worker) -> None:
        now = self._clock.now
        due = [
            one for one in worker.shards.values() if one.poll_at is not None and one.poll_at <= now
        ]
        if worker.is_stopped or not due:
            return
        if worker.free > 0:
            shard = min(due, key=lambda one: one.poll_at or 0)
            shard.poll_at = None
            self._poll(worker, shard)
            if len(due) > 1:
                self._later(now, lambda: self._poll_next(worker))
            return
        worker.is_queued = True
        for shard in due:
            if shard.is_expected:
                shard.is_expected = False
                self._call(worker, shard, "pass", ("q",))

    def _poll(self, worker: Worker, shard: Shard) -> None:
        now, free = self._clock.now, worker.free
        lines = self._shards[shard.number]
        soon_free = self.processes - free if self.task <= SHORT_TASK else 0
        for row in self._call(worker, shard, "found", ("q",), free + soon_free, free=free):
            at = now + row.starts
            self.starts[f"{row.field}{lines.keys.prefix}" if shard.number else row.field].append(at)
            worker.free -= 1
            self._later(at, partial(self._begin, worker, shard, row.token, at))
        shard.is_expected = lines.ask > 0 and worker.free > 0
        self._set_poll(worker, shard, now + max(0, lines.ask))

    def _begin(self, worker: Worker, shard: Shard, token: int, at: int) -> None:
        if worker.idle == 0:
            worker.queue.append((shard, token, at))
            return
        worker.idle -= 1
        self.longest_delay = max(self.longest_delay, self._clock.now - at)
        self._later(self._clock.now + self.task, partial(self._end, worker, shard, token))

    def _end(self, worker: Worker, shard: Shard, token: int) -> None:
        worker.free += 1
        worker.idle += 1
        shard.settled.append(token)
        if shard.report_at is None:
            shard.report_at = self._clock.now + REPORT_DELAY
            self._later(shard.report_at, lambda: self._report(worker, shard))
        if worker.queue:
            self._begin(worker, *worker.queue.pop(0))
        if worker.is_queued and worker.free > 0:
            worker.is_queued = False
            self._poll_next(worker)

    def _report(self, worker: Worker, shard: Shard) -> None:
        at = shard.report_at
        if not worker.is_stopped and at is not None and at <= self._clock.now:
            self._call(worker, shard, "settle", ())

    def _call(
        self,
        worker: Worker,
        shard: Shard,
        kind: str,
        queues: tuple[str, ...],
        room: int = 0,
        *,
        free: int = 0,
    ) -> list[Claimed]:
        settled, shard.settled, shard.report_at = shard.settled, [], None
        rows = self._shards[shard.number].claim(
            worker.name,
            room,
            queues=queues,
            ahead=HORIZON,
            free=free,
            moment=HORIZON,
            settled=settled,
            poll_interval=self.poll_interval,
        )
        self.calls["nothing" if kind == "found" and not rows else kind] += 1
        self.calls_of[shard.number] += 1
        shard.replied_at = self._clock.now
        self._hear[shard.number]()
        return rows
