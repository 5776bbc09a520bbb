"""The claim call: the one call by which a worker renews its lease, reports and claims tasks.

Laws at stake here: *never lost* (what a failed call was to report is reported by the next, and what
it may have claimed is requeued, whatever the error: the server undoes nothing of a script that
fails in the middle), no second start (nothing starts that others may have requeued since; a task
whose lease runs out goes to another worker) and *never idle* (starts are booked up to 20 ms ahead,
so that pacing has no gaps).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery.worker import state

from celery_throttle.errors import StoreError, StoreUnavailableError
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.operations.plan import Blocking
from celery_throttle.operations.waiting import claim_call, list_claims_call
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages.packing import is_claimed
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import ClaimedTask, Claims
from celery_throttle.worker.error_log import ErrorLog
from celery_throttle.worker.health.loop_calls import LoopSteps, RoundTrip, run_in_place
from celery_throttle.worker.health.queues import WorkerQueues
from celery_throttle.worker.rounds import run_round
from celery_throttle.worker.slots import TaskSlots


class Capacity(NamedTuple):
    """The processes that tasks may be claimed for."""

    free: int  #: processes that are free now, and for which no task is booked
    soon_free: int = 0  #: processes that will probably be free at a start that is booked for them
    #: Whether other tasks wait in this worker for a process. Then no start is booked ahead, as it
    #: might find no process when its time comes.
    contended: bool = False
    #: How far ahead (s) a start may be booked for a process that is not free yet.
    soon_free_horizon: float = tuning.SOON_FREE_BOOKING_SECONDS


class ClaimReply(NamedTuple):
    """The result of a claim call."""

    wait: float  #: seconds until the next call
    dead_worker: str = ""  #: name of a worker whose lease has run out
    tasks: Sequence[ClaimedTask] = ()


@dataclass(eq=False, repr=False)
class ClaimCall:
    """Makes the claim calls of one worker, one at a time. Thread-safe."""

    throttle: AppLimits
    claims: Claims
    slots: TaskSlots
    queues: WorkerQueues
    #: Puts limits in force again that the server has lost.
    restore: Callable[[], None]
    poll_interval: float = tuning.MAX_POLL_INTERVAL_SECONDS  #: longest time between two polls
    #: Returns the identities of parked messages whose acknowledgement is certain.
    take_acknowledged: Callable[[], Sequence[str]] = tuple
    replied_at: float = 0.0  #: monotonic time of the server's last reply
    #: Monotonic time of the last reply that came after so long a silence that leases may have run
    #: out: this process stood still, or could not reach the server. 0.0 if there was none.
    returned_at: float = 0.0

    def __post_init__(self) -> None:
        self._store = self.throttle.store
        self.lease = self.throttle.settings.lease  #: seconds of the worker's lease
        self._error_log = ErrorLog(
            "The server refuses claims; tasks stay in their lines, and this worker tries again "
            "every second."
        )
        self._slot_error_log = ErrorLog(
            "The server refuses to renew the slots of running tasks; other tasks take these slots "
            "when their leases run out."
        )
        #: Held while a call claims tasks, until these are received.
        self.lock = threading.Lock()
        self._last_reply = time.time()
        self._compared_at = time.monotonic()
        self._generation = self._store.generation
        #: Whether the claims may have changed since they were compared.
        self._is_changed = False
        self._has_registered = False
        #: Whether a failed call may have claimed tasks that could not be requeued since.
        self._in_doubt = False
        self._first_queue = 0

    def report(self) -> None:
        """Renew the lease, settle claims and release slots, blocking; claim nothing."""
        run_in_place(self.claim(lambda: Capacity(0)))

    def claim(
        self, capacity: Callable[[], Capacity], *, is_passing: bool = False
    ) -> LoopSteps[ClaimReply | None]:
        """Claim tasks that are due; report as well. None if the server cannot be reached.

        ``capacity`` is called when no other call is on its way. ``is_passing``: let other workers
        poll now for what is due, as this one has no process.
        """
        if not self.lock.acquire(blocking=False):
            yield Blocking(self.lock.acquire)
        try:
            return (yield from self._run(capacity(), is_passing=is_passing))
        finally:
            self.lock.release()

    @property
    def is_lost(self) -> bool:
        """Whether the server is lost."""
        return self._store.breaker.is_open

    @property
    def has_reports(self) -> bool:
        """Whether a claim or a slot has ended, and no call has reported that yet."""
        claims = self.claims
        return bool(claims.settled or claims.has_pending or self.slots.releases)

    def renew_slots(self) -> None:
        """Renew the leases of the slots that running tasks hold."""
        with self.lock:
            call = self.slots.renew_call(self.throttle.plans, self.lease)
            try:
                if call is not None:
                    self._store.run(call)
            except StoreError as error:  # the next renewal may succeed
                self._slot_error_log.log(error)

    def queue_keys(self) -> list[str]:
        """Return the keys of the queues that this worker consumes, four each.

        Another queue is the first each time. Otherwise the last queues would starve where more is
        due than there are free processes.
        """
        queues = self.queues.keys()
        first = self._first_queue = (self._first_queue + 1) % max(1, len(queues))
        return [key for keys in queues[first:] + queues[:first] for key in keys]

    def _run(self, capacity: Capacity, *, is_passing: bool = False) -> LoopSteps[ClaimReply | None]:
        breaker = self._store.breaker
        if breaker.is_open and breaker.watcher:  # the heartbeat finds out when the server is back
            return None
        if self._must_compare():
            yield Blocking(self._compare_claims)
        # Its own error must not keep the worker from renewing its lease, settling and claiming. But
        # while nobody knows which tasks a failed call has claimed, the next one claims no others.
        requeued = not self.claims.has_pending or (yield Blocking(self.claims.requeue_pending))
        self._in_doubt = self._in_doubt and not requeued
        free = 0 if self._in_doubt else min(tuning.CLAIM_BATCH_SIZE, max(0, capacity.free))
        count = min(tuning.CLAIM_BATCH_SIZE, free + capacity.soon_free) if free else 0
        settled, releases = self.claims.settled.take(), self.slots.releases.take()
        self._is_changed = self._is_changed or bool(settled or releases)
        first = self.claims.reserve_tokens(count)
        tokens = range(first, first + count)
        call = claim_call(
            self.claims.keys,
            self.claims.worker,
            self.queue_keys() if count or is_passing else (),
            tokens,
            lease=self.lease,
            poll_interval=self.poll_interval,
            free=free,
            horizon=0.0 if capacity.contended else tuning.BOOKING_HORIZON_SECONDS,
            soon_free_horizon=capacity.soon_free_horizon,
            settled=settled,
            releases=releases,
            acknowledged=self.take_acknowledged(),
            registered=self._has_registered,
        )
        sent = time.time()
        (reply,) = yield RoundTrip(self._store, [call])
        if isinstance(reply, StoreError):
            self._error_log.log(reply)
            self.claims.settled.extend(settled)
            self.slots.releases.extend(releases)
            self.claims.requeue_uncertain(tokens)
            self._in_doubt = self._in_doubt or count > 0
            self._is_changed = True
            if isinstance(reply, StoreUnavailableError):
                return None
            return ClaimReply(tuning.CLAIM_RETRY_SECONDS)
        self.replied_at = time.monotonic()
        since_last_reply, self._last_reply = time.time() - self._last_reply, time.time()
        # Of a worker that was silent for two thirds of its lease, the lease may have run out: the
        # renewal before may be a third of the lease older.
        longest_silence = self.lease * 2 / 3
        if since_last_reply > longest_silence:
            self.returned_at = self.replied_at
        wait, dead_worker, *rows = reply
        tasks = [self.claims.receive(row, sent + longest_silence) for row in rows]
        self._has_registered = wait < 0
        if self._has_registered:
            yield Blocking(self.restore)
        if self._in_doubt:
            return ClaimReply(tuning.CLAIM_RETRY_SECONDS, dead_worker.decode())
        # The reply says when to call again only if tasks were wanted.
        seconds = max(0, wait) / MICROSECONDS if count else 0.0
        return ClaimReply(seconds, dead_worker.decode(), tasks)

    def _must_compare(self) -> bool:
        """Return whether to compare the claims: now and then, and after each lost connection.

        Behind the same address another server may reply meanwhile, without the last reports. That
        would be no outage: the next connection succeeds.
        """
        return self._is_compare_due() or self._store.generation != self._generation

    def _is_compare_due(self) -> bool:
        is_old = time.monotonic() - self._compared_at > tuning.CLAIM_CHECK_SECONDS
        return is_old and (self._is_changed or len(self.claims) > 0)

    def _compare_claims(self) -> None:
        """End claims that only the server has."""
        generation, now, is_due = self._store.generation, time.monotonic(), self._is_compare_due()
        try:
            tokens = self._store.run(list_claims_call(self.claims.keys, self.claims.worker))
        except StoreError:  # so does the claim call, which logs it; the next one tries again
            return
        self.claims.end_unknown(map(int, tokens))
        if generation != self._generation:
            self._generation = generation
            self.slots.releases.repeat()
        if is_due:
            self._compared_at = now
            self._is_changed = False
            self.claims.settled.forget()
            self.slots.releases.forget()


class WorkerLeases:
    """Renews the leases of a worker's claims and slots in one shard.

    A :class:`LeaseThread` does that every third of their length.
    """

    def __init__(self, call: ClaimCall) -> None:
        self._call = call
        self._renewed_at = time.monotonic()
        self.interval = call.lease / 3  #: seconds between two renewals

    def __len__(self) -> int:
        return len(self._call.claims) + len(self._call.slots)

    def renew(self) -> None:
        """Renew the lease of the claims, if no claim call just did, and those of the slots."""
        if self._is_silent():
            self._call.report()
        self._call.renew_slots()
        if not self._call.is_lost:  # else soon again
            self._renewed_at = time.monotonic()

    def _is_silent(self) -> bool:
        return time.monotonic() - self._call.replied_at > tuning.LEASE_SILENCE_SECONDS

    def renew_in_time(self) -> None:
        """Renew the leases if it is time, or report what no other call has reported."""
        if len(self) == 0:  # the lease of a worker without claims and slots is not kept
            self._renewed_at = time.monotonic()
        if time.monotonic() - self._renewed_at > self.interval:
            self.renew()
        elif self._call.has_reports and self._is_silent():
            self._call.report()

    def release_dropped(self) -> None:
        """Requeue the claims and release the slots of tasks that Celery has dropped.

        When Celery loses the broker, it drops tasks that no process has begun, and cancels others
        if it is configured to.
        """
        running = list(state.active_requests)
        kept = {request.message.claim for request in running if is_claimed(request.message)}
        claims, slots = self._call.claims, self._call.slots
        claims.requeue(set(claims.started()) - kept)
        for request in set(slots.requests()) - set(running):
            slots.end(request)


class LeaseThread:
    """Renews the leases of the shards on one server, or in one cluster, in a thread.

    The loop of the worker may be blocked: while a task runs in its thread (solo), while the
    connection to the broker is lost, and while the worker shuts down but tasks still run. The
    thread also reports, within two seconds, what no other call has reported: that such a task has
    started, since it would run again if this worker died, or what a call could not report that has
    failed.
    """

    def __init__(self, leases: Sequence[WorkerLeases]) -> None:
        self._leases = leases
        self._pause = min(tuning.LEASE_SILENCE_SECONDS, *(each.interval / 4 for each in leases))
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Start the thread, if it does not run. Not earlier: the pool forks before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="throttle-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread as soon as nothing is held any more."""
        self._is_stopping = True

    def _run(self) -> None:
        while not self._is_stopping or any(map(len, self._leases)):
            time.sleep(self._pause)
            run_round([each.renew_in_time for each in self._leases], tuning.ROUND_SECONDS)
