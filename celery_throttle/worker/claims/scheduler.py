"""When a worker polls for tasks that wait in lines, and which of its shards polls next.

Laws at stake here: *never idle*, and *never in the way* (a task is claimed only for a free process;
where tasks queue for processes, the lines queue with them).

The path of one task: the scheduler lets its shard poll (``poller.py``); the claim call
(``call.py``) brings the task; it is held under a claim (``claims.py``) and given to Celery
(``dispatch.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from celery.worker import state

from celery_throttle.worker import tuning
from celery_throttle.worker.claims.claims import Claims
from celery_throttle.worker.hooks.pool import WorkerPool, scale_up
from celery_throttle.worker.hooks.timers import Alarm, Timers


class Polls(Protocol):
    """The polls of one shard: :class:`celery_throttle.worker.claims.poller.Poller`."""

    more_are_due: bool  #: whether the last poll left tasks that are due

    def run(self) -> None:
        """Poll, or queue to poll after the calls to a slow server."""


@dataclass(eq=False, repr=False)
class Scheduler:
    """Lets the shards of a worker poll, over one connection to the broker.

    One scheduler serves all shards, so that no free process is given to two claims: one shard polls
    at a time, and the most overdue one is the first.

    With an event loop all methods run in the loop's thread, except those that are thread-safe.
    Without one, the thread of the timers polls.
    """

    consumer: Any
    timers: Timers
    pool: WorkerPool
    claims: Sequence[Claims]  #: of all shards

    def __post_init__(self) -> None:
        self._alarm = Alarm(self.timers, self._poll_next)
        #: When each shard polls next (monotonic).
        self._due_times: dict[Polls, float] = {}
        self._lock = threading.Lock()
        #: Held from the count of the free processes until the tasks claimed for them are received.
        self.claiming = threading.Lock()
        self.is_running = True
        self._is_queued = False
        self._queued_at = 0.0

    def stop(self) -> None:
        """Let no shard poll from now on."""
        self.is_running = False
        self._alarm.cancel()

    def poll_in(self, polls: Polls, seconds: float) -> None:
        """Let a shard poll after some seconds, or at an earlier time set before. Thread-safe."""
        at = time.monotonic() + max(0.0, seconds)
        with self._lock:
            self._due_times[polls] = min(at, self._due_times.get(polls, at))
        self._alarm.set(seconds)

    def count_free(self) -> int:
        """Return the number of free processes for which no task is booked."""
        if not self.is_running or _is_stop_requested():
            return 0
        return self.pool.count_free() - sum(len(claims.unstarted()) for claims in self.claims)

    def _poll_next(self) -> None:
        """Let the most overdue shard poll if a process is free; otherwise queue for a process."""
        if self.count_free() <= 0:
            self._queue()
            return
        due, next_at = self._take_due()
        if next_at is not None:
            self._alarm.set(next_at - time.monotonic())
        if due is not None:
            due.run()

    def _take_due(self) -> tuple[Polls | None, float | None]:
        """Return the most overdue shard, if one is due, and when the next of the others is."""
        with self._lock:
            by_time = sorted(self._due_times.items(), key=lambda item: item[1])
            due = by_time.pop(0)[0] if by_time and by_time[0][1] <= time.monotonic() else None
            if due is not None:
                del self._due_times[due]
        return due, by_time[0][1] if by_time else None

    def _queue(self) -> None:
        """Queue for a process, with the tasks that wait in this worker for one."""
        if not self.is_running or self._is_queued:
            return
        self._is_queued = True
        self._queued_at = time.monotonic()
        if any(polls.more_are_due for polls in list(self._due_times)):
            self.timers.call_after(tuning.BOOKING_HORIZON_SECONDS, self._scale_up_if_queued)
        self.pool.call_when_free(self._on_process_free)

    def _scale_up_if_queued(self) -> None:
        queued_for = time.monotonic() - self._queued_at
        if self._is_queued and self.is_running and queued_for > tuning.BOOKING_HORIZON_SECONDS / 2:
            scale_up(self.consumer.controller, self.pool)

    def _on_process_free(self) -> None:
        self._is_queued = False
        if self.count_free() > 0:
            self._poll_next()
        elif self.is_running:
            # The free processes are for booked tasks, and nothing reports the ends of these.
            self._alarm.set(tuning.POOL_CHECK_SECONDS)


def _is_stop_requested() -> bool:
    """Return whether Celery received a signal to stop; its loop may act on that seconds later."""
    exit_codes = (state.should_stop, state.should_terminate)
    return any(code is not None and code is not False for code in exit_codes)  # 0 is a code, too
