"""The claims of this worker, and how each ends.

A claim is settled when its task is acknowledged, or requeued at the head of its line if the task
was not started. Both may reach the server late or twice without harm: a claim that is not settled
stays with its worker while the lease lasts, and is requeued when the lease runs out. A failover may
lose both, so the worker compares its claims with those of the server now and then.

Laws at stake here: *never over* (the server gives back the units of a claim only if this worker
says that its task was not started, and then the task is not started any more) and *never idle* (it
does so if the limit takes long to give others).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import read_text
from celery_throttle.observe.text import count
from celery_throttle.operations.acquire import Taken, read_takes
from celery_throttle.operations.waiting import ClaimStatus, quarantine_call, requeue_call
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.worker import tuning
from celery_throttle.worker.demand import Demand, RunTimes
from celery_throttle.worker.error_log import ErrorLog
from celery_throttle.worker.slots import ReportQueue, SlotKeys, read_slot_keys

logger = get_logger(__name__)

#: The kind of a row of ``claim.lua`` whose task is to end as revoked.
_SURPLUS = 2


class Wait(NamedTuple):
    """A wait that is over."""

    ref: LimitRef  #: the limit that the task waited for last
    position: int  #: in the line when the task joined it, from 1; 0 without a line
    seconds: float


@dataclass(eq=False, slots=True)
class Claim:
    """This worker's hold on one task that came out of a line."""

    claims: Claims
    token: int  #: number of the claim among the worker's claims
    #: Whether the units were taken with the task. If not (the task has expired, was revoked, or can
    #: never pass), the gate decides, as for any message.
    has_units: bool
    wait: Wait | None  #: in its line; None if the units were not taken
    slots: Sequence[SlotKeys]  #: those that were taken with the task
    #: Time of day after which the task must not start: other workers may have requeued it.
    start_by: float
    #: What was taken with the task, if its run settles.
    takes: Sequence[Taken] = ()
    is_surplus: bool = False  #: whether the task is to end as revoked: another one waits
    status: ClaimStatus = ClaimStatus.HELD
    began: float = 0.0  #: when the pool got the task (monotonic); 0.0 if it has not, or has ended

    @property
    def name(self) -> str:
        """A name that no other claim of any worker has, in any shard."""
        return f"{self.claims.worker} {self.token} {self.claims.keys.prefix}"

    @property
    def is_started(self) -> bool:
        """Whether the pool has the task, or had it."""
        return self.status is ClaimStatus.STARTED

    @property
    def is_returned(self) -> bool:
        """Whether the task left this worker; see :class:`ClaimStatus`."""
        return self.status is ClaimStatus.RETURNED

    def start(self) -> bool:
        """Record that the pool gets the task; False if it must not start in this worker."""
        return self.claims.start(self)

    def end(self) -> None:
        """Record that the task has left its process."""
        self.claims.end(self)

    def settle(self) -> None:
        """Record that the message is acknowledged, which ends the claim."""
        self.claims.settle(self)

    def requeue(self) -> None:
        """Put the task back at the head of its line."""
        self.claims.requeue([self])


class ClaimedTask(NamedTuple):
    """A task that came out of its line."""

    claim: Claim
    starts_in: float  #: seconds until the task may start
    packed: bytes  #: the message; see `tasks/messages/packing.py`. Empty if the task cannot be read
    task_id: str


class Claims:
    """All claims of one worker. Thread-safe.

    ``on_settled`` is called when a claim was settled, from the thread that acknowledged its task.

    Attributes:
        on_returned: called when there are claims to requeue, from the thread that has let go of
            them; by default, it requeues them.
    """

    def __init__(
        self, store: Store, keys: Keys, worker: str, on_settled: Callable[[], None]
    ) -> None:
        self.store = store
        self.keys = keys
        self.worker = worker
        self.on_settled = on_settled
        self.on_returned: Callable[[], object] = self.requeue_pending
        self._held: dict[int, Claim] = {}
        #: Tokens to report; negative if the task was not started, so that its slots are released
        #: and its units given back.
        self.settled: ReportQueue[int] = ReportQueue()
        #: Tokens, and how far the tasks have come.
        self._to_requeue: list[tuple[int, ClaimStatus]] = []
        self._error_log = ErrorLog(
            "The server refuses to requeue tasks; they wait, and this worker tries again."
        )
        self._next = 1
        self._starts = Demand()
        self._runs = RunTimes()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._held.values()))

    def unstarted(self) -> list[Claim]:
        """Return the claims whose tasks the pool does not have yet."""
        return [claim for claim in self if not claim.is_started]

    def started(self) -> list[Claim]:
        """Return the claims whose tasks the pool has, or had."""
        return [claim for claim in self if claim.is_started]

    def reserve_tokens(self, count: int = 1) -> int:
        """Reserve some tokens, and return the first of them."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first

    def receive(self, row: Sequence[Any], start_by: float = math.inf) -> ClaimedTask:
        """Hold a task that the server has given out: a row of ``claim.lua`` or ``withdraw.lua``.

        For ``start_by`` see :class:`Claim`.
        """
        token, kind, starts, waited, packed, task_id, *line = row
        wait, slots, takes = None, [], []
        if line:
            field, position, *more = line
            slots, takes = more[:1], more[1:]
            wait = Wait(self.keys.field_ref(field.decode()), position, waited / MICROSECONDS)
        claim = Claim(
            self,
            token,
            has_units=kind == 1,
            wait=wait,
            slots=read_slot_keys(*slots) if slots else (),
            takes=read_takes(*takes),
            start_by=start_by,
            is_surplus=kind == _SURPLUS,
        )
        self._held[token] = claim
        return ClaimedTask(claim, starts / MICROSECONDS, packed, read_text(task_id))

    def deliver(self, claim: Claim) -> bool:
        """Record that Celery gets the message; False if the task has left this worker."""
        with self._lock:
            if not claim.is_returned:
                claim.status = ClaimStatus.DELIVERED
            return not claim.is_returned

    def start(self, claim: Claim) -> bool:
        """See :meth:`Claim.start`."""
        with self._lock:
            if claim.is_started:  # its task has stepped out, and comes to the gate again
                return True
            if time.time() > claim.start_by:
                self._begin_requeue(claim)
            if claim.is_returned:
                return False
            claim.status = ClaimStatus.STARTED
            if claim.has_units:
                claim.began = time.monotonic()
                self._runs.begin()
                self._starts.count((None,), claim.began)
            return True

    def end(self, claim: Claim) -> None:
        """See :meth:`Claim.end`."""
        with self._lock:
            self._end_run(claim)

    def _end_run(self, claim: Claim) -> None:
        """Record that no process runs the task, once. The lock is held."""
        if claim.began:
            self._runs.end(time.monotonic() - claim.began)
            claim.began = 0.0

    def recent_starts(self) -> int:
        """Return how many claims were started in 20 ms recently."""
        return self._starts.recent(None, time.monotonic())

    def short_runs(self) -> int:
        """Return how many processes run claimed tasks, or will, if such tasks end within 5 ms."""
        return self._runs.running + len(self.unstarted()) if self._runs.are_short() else 0

    def settle(self, claim: Claim) -> None:
        """See :meth:`Claim.settle`."""
        with self._lock:
            if self._held.pop(claim.token, None) is None:
                return
            self.settled.append(claim.token if claim.is_started else -claim.token)
        self.on_settled()

    def requeue(self, claims: Iterable[Claim], *, unless_started: bool = False) -> None:
        """Put tasks back at the heads of their lines, now or soon; see ``on_returned``."""
        with self._lock:
            for claim in claims:
                if not (claim.is_started and unless_started):
                    self._begin_requeue(claim)
        if self._to_requeue:
            self.on_returned()

    def _begin_requeue(self, claim: Claim) -> None:
        """Let go of a claim, which is requeued with the next call. The lock is held."""
        if self._held.pop(claim.token, None) is not None:
            self._to_requeue.append((claim.token, claim.status))
            claim.status = ClaimStatus.RETURNED
            self._end_run(claim)

    def requeue_uncertain(self, tokens: Iterable[int]) -> None:
        """Requeue, with the next call, the claims that a failed call may have made."""
        with self._lock:
            self._to_requeue.extend((token, ClaimStatus.HELD) for token in tokens)

    def end_unknown(self, tokens: Iterable[int]) -> None:
        """End the claims with these tokens, which the server has, unless this worker holds them.

        The server has lost the report of their end. They are settled if this worker remembers that
        report, and requeued otherwise: the tasks may not have run. No call may be on its way whose
        claims this worker has not received yet.
        """
        with self._lock:
            reports = self.settled.remembered()
            # The next call reports those that were settled meanwhile.
            returned = (token for token, _ in self._to_requeue)
            pending = {*self._held, *returned, *map(abs, self.settled)}
            for token in set(tokens) - pending:
                if token in reports:
                    self.settled.append(token)
                elif -token in reports:
                    self.settled.append(-token)
                else:
                    self._to_requeue.append((token, ClaimStatus.STARTED))

    @property
    def has_pending(self) -> bool:
        """Whether there are claims to requeue."""
        return bool(self._to_requeue)

    def requeue_pending(self) -> bool:
        """Requeue the claims that could not be requeued before; return whether none is left.

        If the server cannot be reached, or refuses, they stay pending, and the error is logged.
        """
        while self._to_requeue:
            with self._lock:
                returned = self._to_requeue[: tuning.REQUEUE_BATCH_SIZE]
                self._to_requeue = self._to_requeue[tuning.REQUEUE_BATCH_SIZE :]
            left = len(returned)
            try:
                left = self._run_requeue(self.worker, "own", left, returned)
            except StoreError as error:
                self._error_log.log(error)
                return False
            finally:  # all of them if the call fails, the last ones if the tasks are large
                with self._lock:
                    self._to_requeue.extend(returned[len(returned) - left :])
        return True

    def quarantine(self, claim: Claim, label: str) -> None:
        """Leave a task to a worker that has the code for it; see ``quarantine.lua``."""
        with self._lock:
            if self._held.pop(claim.token, None) is None:
                return
            claim.status = ClaimStatus.RETURNED
        try:
            self.store.run(quarantine_call(self.keys, self.worker, claim.token, label))
        except StoreError:  # then it goes back to its line
            self.requeue_uncertain([claim.token])

    def reclaim(self, worker: str) -> None:
        """Requeue all claims of another worker, whose lease has run out."""
        logger.warning("Worker %s is gone: its tasks go back to their lines", worker)
        try:
            while (left := self._run_requeue(worker, "dead", tuning.REQUEUE_BATCH_SIZE)) > 0:
                pass
            if left < 0:
                logger.error(
                    "%s of worker %s cannot be requeued, and will not run: what is left in the "
                    "hash %s, which is kept for 8 days, cannot be read",
                    *(count(-left, "task"), worker, self.keys.claims(worker)),
                )
        except StoreError as error:
            self._error_log.log(error)

    def _run_requeue(
        self,
        worker: str,
        which: str,
        limit: int,
        returned: Sequence[tuple[int, ClaimStatus]] = (),
    ) -> int:
        """Run ``requeue.lua``; return its reply: how many claims are left to requeue."""
        left: int = self.store.run(requeue_call(self.keys, worker, which, limit, returned))
        return left
