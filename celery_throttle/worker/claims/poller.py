"""When a worker polls for tasks that wait in lines, for which shard, and what follows.

Laws at stake here: *never idle*, and *never in the way* (a task is claimed only for a free process;
where tasks queue for processes, the lines queue with them).

The path of one task: the scheduler lets the poller of its shard poll; the claim call (``call.py``)
brings the task; it is held under a claim (``../claim.py``) and given to Celery (``dispatch.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from celery.worker import state

from celery_throttle.operations.plan import Blocking
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import ClaimedTask, Claims
from celery_throttle.worker.claims.call import Capacity, ClaimCall, ClaimReply
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.revoked import RevokedTasks
from celery_throttle.worker.health.loop_calls import (
    LateReplyError,
    LoopCalls,
    LoopSteps,
    raise_error,
)
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.hooks.pool import WorkerPool, scale_up
from celery_throttle.worker.hooks.timers import Alarm, Timers

T = TypeVar("T")

HORIZON = tuning.BOOKING_HORIZON_SECONDS


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
        self._due_times: dict[Poller, float] = {}
        self._lock = threading.Lock()
        #: Held during a poll: from the count of the free processes until the tasks that are claimed
        #: for them are received.
        self.claiming = threading.Lock()
        self.is_running = True
        self._is_queued = False
        self._queued_at = 0.0

    def stop(self) -> None:
        """Let no shard poll from now on."""
        self.is_running = False
        self._alarm.cancel()

    def poll_in(self, poller: Poller, seconds: float) -> None:
        """Let a shard poll after some seconds, or at an earlier time set before. Thread-safe."""
        at = time.monotonic() + max(0.0, seconds)
        with self._lock:
            self._due_times[poller] = min(at, self._due_times.get(poller, at))
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
            self._pass_polls()
            return
        with self._lock:
            now, due = time.monotonic(), None
            by_time = sorted(self._due_times.items(), key=lambda item: item[1])
            if by_time and by_time[0][1] <= now:
                due, _ = by_time.pop(0)
                del self._due_times[due]
        if by_time:
            self._alarm.set(by_time[0][1] - now)
        if due is not None:
            due.run()

    def _pass_polls(self) -> None:
        """Let other workers poll for the shards that are due: this one has no process for them."""
        now = time.monotonic()
        for poller, at in list(self._due_times.items()):
            if at <= now and self.is_running:
                poller.pass_poll()

    def _queue(self) -> None:
        """Queue for a process, with the tasks that wait in this worker for one."""
        if not self.is_running or self._is_queued:
            return
        self._is_queued = True
        self._queued_at = time.monotonic()
        if any(poller.more_are_due for poller in list(self._due_times)):
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


@dataclass(eq=False, repr=False)
class Poller:
    """Polls for the tasks of one shard, over one connection to the broker, until :meth:`stop`.

    The claim call brings tasks for the processes that are free. Without a free process it reports
    what has ended: settled claims and released slots.
    """

    scheduler: Scheduler
    consumer: Any
    timers: Timers
    call: ClaimCall
    revoked: RevokedTasks
    dispatcher: Dispatcher
    outage: OutageMode
    calls: LoopCalls
    more_are_due: bool = False  #: whether the last poll left tasks that are due
    #: Whether other workers expect the next poll of this one, and therefore poll later.
    is_expected: bool = False

    def __post_init__(self) -> None:
        self._report_alarm = Alarm(self.timers, self._report)
        self._requeue_alarm = Alarm(
            self.timers, lambda: self.calls.run_or_queue(self._requeue_pending)
        )
        self._claims, self._slots = self.call.claims, self.call.slots
        self._thread = threading.get_ident()
        self._began = time.monotonic()

    def stop(self) -> None:
        """Make no call later: claims and slots that end are reported at once from now on."""
        self._report_alarm.cancel()
        self._requeue_alarm.cancel()

    def poll_in(self, seconds: float) -> None:
        """Poll after some seconds, when a task may be due. Thread-safe."""
        self.scheduler.poll_in(self, seconds)

    def on_wakeup(self) -> None:
        """Poll soon: a line may be due, see ``wakeup.py``. Thread-safe."""
        recent = time.monotonic() - self.call.replied_at < tuning.MIN_WAKEUP_INTERVAL_SECONDS
        self.poll_in(tuning.MIN_WAKEUP_INTERVAL_SECONDS if recent else 0)

    def on_released(self) -> None:
        """Report released slots: another task may be waiting for one. Thread-safe."""
        scheduler = self.scheduler
        if not scheduler.is_running:
            self.call.report()
        elif (
            self.consumer.hub is not None
            and threading.get_ident() == self._thread
            and not scheduler.claiming.locked()  # or this thread would wait for itself
            # Or the next task would run before this one has ended.
            and not scheduler.pool.runs_inline
            and scheduler.count_free() > 0
            and time.monotonic() - self.call.replied_at > tuning.RELEASE_REPORT_SECONDS
        ):
            self._report()
        else:  # together with others that end now
            self._report_alarm.set(0)

    def on_settled(self) -> None:
        """Report settled claims. Thread-safe."""
        if self.scheduler.is_running:
            self._report_alarm.set(tuning.SETTLE_REPORT_SECONDS)
        else:
            self.call.report()

    def on_returned(self) -> None:
        """Requeue the claims that were let go of. Thread-safe."""
        if self.scheduler.is_running:
            self._requeue_alarm.set(0)
        else:
            self._claims.requeue_pending()

    def _requeue_pending(self) -> None:
        self.calls.call(self._claims.requeue_pending)

    def _report(self) -> None:
        self.calls.run_or_queue(self._report_now)

    def _report_now(self) -> None:
        """Report what ended. If slots are released and a process is free, also claim for them."""
        if self._slots.releases and self.scheduler.count_free() > 0:
            self._poll()
        elif self.call.has_reports:
            self._run(self.call.claim(lambda: Capacity(0)), _ignore)

    def _run(self, steps: LoopSteps[T], receive: Callable[[T], None]) -> None:
        """Carry out steps; ``receive`` is called with their result, now or later."""

        def receive_late(outcome: T | Exception) -> None:
            with self._polling_again():
                raise_error(outcome)
                receive(cast("T", outcome))

        with suppress(LateReplyError), self._polling_again():
            receive(self.calls.run(steps, receive_late))

    @contextmanager
    def _polling_again(self) -> Iterator[None]:
        """Poll again after an unexpected error, which whoever makes the calls of timers logs."""
        try:
            yield
        except LateReplyError:
            raise
        except Exception:
            self.poll_in(tuning.CLAIM_RETRY_SECONDS)
            raise

    def run(self) -> None:
        """Poll, or queue to poll after the calls to a slow server."""
        self.calls.run_or_queue(self._poll_if_free)

    def pass_poll(self) -> None:
        """Let other workers poll, if they expect this one to, which has no process."""
        if self.is_expected:
            self.is_expected = False
            self.calls.run_or_queue(self._pass_poll)

    def _poll_if_free(self) -> None:
        if self.scheduler.count_free() > 0:
            self._poll()
        else:  # the processes were taken during a rest
            self.poll_in(0)

    def _pass_poll(self) -> None:
        self._run(self.call.claim(lambda: Capacity(0), is_passing=True), _ignore)

    def _poll(self) -> None:
        """Claim the tasks that are due, for the free processes."""
        with self.scheduler.claiming:
            if self.revoked.has_new():
                self._run(self._withdraw(), self._dispatch)
            self._report_alarm.cancel()  # the call reports what has ended by now
            self._run(self.call.claim(self._capacity), self._receive)

    def _withdraw(self) -> LoopSteps[Sequence[ClaimedTask]]:
        """Withdraw revoked tasks from their lines."""
        tasks: Sequence[ClaimedTask] = yield Blocking(self.revoked.withdraw)
        return tasks

    def _dispatch(self, tasks: Sequence[ClaimedTask]) -> None:
        if self.scheduler.is_running:  # else they go back to their lines
            for task in tasks:
                self.dispatcher.dispatch(task)

    def _receive(self, reply: ClaimReply | None) -> None:
        """Dispatch the tasks that a call has claimed, and set the time of the next one."""
        if reply is None:
            # At the end of an outage, `poll_in(0)` follows.
            lost = self.outage.is_on
            self.poll_in(tuning.RETRY_SECONDS if lost else tuning.MIN_WAKEUP_INTERVAL_SECONDS)
            return
        self.more_are_due = bool(reply.tasks) and not reply.wait
        self._dispatch(reply.tasks)
        self.is_expected = reply.wait > 0 and self.scheduler.count_free() > 0
        if reply.dead_worker and self._had_time_to_renew():
            self.calls.call(partial(self._claims.reclaim, reply.dead_worker))
        self.poll_in(reply.wait)

    def _capacity(self) -> Capacity:
        free, contended = self.scheduler.count_free(), self.scheduler.pool.is_contended()
        if contended:
            return Capacity(free, contended=True)
        # A task that is claimed for a process that is not free starts within 20 ms, or goes back to
        # its line. As many will be free in a moment as claims have started in such a time recently;
        # and if tasks are short, all those in which claimed tasks run, long before a later start.
        soon_free = int(self._claims.recent_starts() * tuning.SOON_FREE_SECONDS / HORIZON)
        short_runs = min(self._claims.short_runs(), self.scheduler.pool.count_processes() - free)
        if short_runs > 0:
            return Capacity(free, max(soon_free, short_runs), soon_free_horizon=HORIZON)
        return Capacity(free, soon_free)

    def _had_time_to_renew(self) -> bool:
        """Whether a worker that lives would have renewed its lease after an outage.

        A worker that has just begun does not know whether there was one. If this worker stood
        still, others may have done so, too: their machine was suspended.
        """
        now, grace = time.monotonic(), tuning.RECLAIM_GRACE_SECONDS
        since_return = now - max(self.outage.ended, self.call.returned_at)
        return since_return > grace and now - self._began > min(grace, self.call.lease)


def _ignore(_: object) -> None:
    """Receive a result that nothing depends on."""


def _is_stop_requested() -> bool:
    """Return whether Celery received a signal to stop; its loop may act on that seconds later."""
    exit_codes = (state.should_stop, state.should_terminate)
    return any(code is not None and code is not False for code in exit_codes)  # 0 is a code, too
