"""Claims waiting tasks in batches, and disposes of them, so that they leave their lines for good.

Law at stake here: *never lost*. A task is claimed under a lease until it is at the broker, or
revoked. If this process dies, the lease runs out, and the tasks of its batch are requeued like
those of a dead worker.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from celery_throttle.bulk.removal.counts import QueueTasks
from celery_throttle.bulk.retry import retry_outage
from celery_throttle.errors import QueueNotFoundError, StoreError
from celery_throttle.limiter.lease_renewer import LeaseRenewer
from celery_throttle.observe.observer import read_text
from celery_throttle.operations.lines import END, Claimant, WithdrawPlans
from celery_throttle.operations.waiting import ClaimStatus, claim_call, requeue_call
from celery_throttle.store.client import Store
from celery_throttle.store.script import Argument, Call

#: Not a logger of Celery, which would show nothing in a script that sets up no logging.
logger = logging.getLogger(__name__)

#: Tasks that one call claims or requeues at most; the server does nothing else meanwhile. Scripts
#: bound their bytes.
BATCH_SIZE = 100

#: Lines that one call looks at.
_LINES_PER_CALL = 100

#: Tokens that are reserved for a call, so that its claims are found if the reply is lost. A call
#: that claims tasks out of quarantine takes as many as one step of a scan returns.
_TOKENS_PER_CALL = 1000


class WithdrawnTask(NamedTuple):
    """A task that was claimed out of its line."""

    token: int
    packed: bytes  #: its message; see `tasks/messages/packing.py`
    id: str


class Disposal:
    """What becomes of withdrawn tasks. A context while the tasks are withdrawn."""

    purpose: str  #: "drain", "move" or "drop"
    target = ""  #: where to, such as " to queue slow"; empty for a queue of their own, or for none

    def __enter__(self) -> None:
        """Prepare."""

    def __exit__(self, *_: object) -> None:
        """Clean up."""

    def identities(self, _: Sequence[WithdrawnTask]) -> list[str]:
        """Return the identities of messages that workers may park again."""
        return []

    def dispose(self, task: WithdrawnTask, queue: str) -> None:
        """Dispose of one task that waited in a queue of the broker.

        Raises:
            QueueNotFoundError: the queue is missing, which ends the removal.
            ValueError, TypeError, LookupError: the message cannot be used. Its task is requeued,
                and the others go on. After any other error nobody knows what became of the task.
        """
        raise NotImplementedError

    def complete(self) -> None:
        """Complete a batch, before its claims are settled. If it fails, they are requeued."""


class Withdrawal:
    """The claims of one removal; a context that requeues those that are not settled.

    Attributes:
        seen: the number of tasks that were looked at so far.
        removed: the number of tasks that were disposed of.
    """

    def __init__(
        self, store: Store, plans: WithdrawPlans, disposal: Disposal, lease: float
    ) -> None:
        self.seen = self.removed = 0
        self._store = store
        self._plans = plans
        self._disposal = disposal
        name = f"{disposal.purpose}-{uuid.uuid4().hex[:12]}@{socket.gethostname()}"
        self._claimant = Claimant(name, lease)
        self._renewer = LeaseRenewer(lambda *_: self._store.run(self._report_call()))
        self._next_token = 1
        #: Tokens to requeue, and how far the tasks have come: to where they go, or not.
        self._open: dict[int, ClaimStatus] = {}
        self._done: list[int] = []

    def __enter__(self) -> None:
        self._renewer.add(self, self._claimant.name, (), self._claimant.lease)

    def __exit__(self, *_: object) -> None:
        self._renewer.remove(self)
        with suppress(StoreError):  # of a fan-out in another shard: its tasks are requeued
            self._complete()
        try:
            self._store.run(self._report_call(self._done))
            self._requeue()
        except StoreError as error:
            logger.warning(
                "%s: its claimed tasks wait again in %.0f s, as they cannot be requeued now: %s",
                *(*self._claimant, error),
            )

    def requeue_lapsed(self) -> None:
        """Requeue the claims of all workers that are dead: there may be no other to do it."""
        while worker := self._report()[1].decode():
            call = requeue_call(self._plans.keys, worker, "dead", BATCH_SIZE)
            while retry_outage(partial(self._store.run, call), self._claimant.name) > 0:
                pass

    def remove(self, queue: QueueTasks, parked_by: int) -> Iterator[int]:
        """Dispose of the tasks of a queue; yield the number of tasks seen, after each batch.

        Tasks that joined their lines after the time ``parked_by`` (microseconds) are left alone.
        """
        quarantined = self._withdraw_quarantined(queue.key) if queue.quarantined else ()
        for tasks in chain(self._withdraw_lines(queue, parked_by), quarantined):
            if not tasks:
                continue
            identities = self._disposal.identities(tasks)
            if identities:
                # A worker takes a redelivered message for one that it has parked if its
                # acknowledgement may have been lost.
                self._report(acknowledged=identities)
            for task in tasks:
                self._dispose(task, queue.name)
            self._complete()
            self._report(self._done)
            self._done = []
            retry_outage(self._requeue, self._claimant.name)
            yield self.seen

    def _dispose(self, task: WithdrawnTask, queue: str) -> None:
        self.seen += 1
        # From now on nobody knows if it was disposed of.
        self._open[task.token] = ClaimStatus.STARTED
        try:
            self._disposal.dispose(task, queue)
        except (ValueError, TypeError, LookupError) as error:
            self._open[task.token] = ClaimStatus.HELD
            if isinstance(error, QueueNotFoundError):
                raise
            task_id = read_text(task.id.encode("utf-8", "surrogatepass"))  # files take no other
            logger.warning(
                "Could not %s task %s, it waits again: %r", self._disposal.purpose, task_id, error
            )
        else:
            del self._open[task.token]
            self._done.append(task.token)
            self.removed += 1

    def _complete(self) -> None:
        """Complete the batch. If that fails, its tasks are requeued."""
        try:
            if self._done:
                self._disposal.complete()
        except BaseException:
            self._open |= dict.fromkeys(self._done, ClaimStatus.STARTED)
            self.removed -= len(self._done)
            self._done = []
            raise

    def _withdraw_lines(self, queue: QueueTasks, parked_by: int) -> Iterator[list[WithdrawnTask]]:
        """Claim the tasks in lines of a queue, in order, and yield them in batches."""
        lines, first, score = list(queue.lines), 0, b"-inf"
        while first < len(lines):
            call = partial(
                self._plans.lines_call,
                self._claimant,
                queue.key,
                lines[first : first + _LINES_PER_CALL],
                parked_by=parked_by,
                most=BATCH_SIZE,
                score=score,
            )
            done, score, tasks = self._withdraw(call)
            first += done
            yield tasks

    def _withdraw_quarantined(self, queue: str) -> Iterator[list[WithdrawnTask]]:
        """Claim the tasks of a queue that are in quarantine, and yield them in batches."""
        cursor: Argument = "0"
        while cursor != END:
            call = partial(self._plans.quarantined_call, self._claimant, queue, cursor)
            cursor, _, tasks = self._withdraw(call)
            yield tasks

    def _withdraw(self, make_call: Callable[..., Call]) -> tuple[Any, Any, list[WithdrawnTask]]:
        """Run a call that claims tasks. What a failed attempt may have claimed is requeued.

        Returns the two values that the reply begins with, and the tasks.
        """

        def attempt() -> list[Any]:
            self._requeue()
            first, self._next_token = self._next_token, self._next_token + _TOKENS_PER_CALL
            self._open = dict.fromkeys(range(first, self._next_token), ClaimStatus.HELD)
            reply: list[Any] = self._store.run(make_call(first_token=first))
            return reply

        one, other, *rows = retry_outage(attempt, self._claimant.name)
        tasks = [
            WithdrawnTask(token, packed, task_id.decode("utf-8", "surrogatepass"))
            for token, packed, task_id in rows
        ]
        self._open = dict.fromkeys((task.token for task in tasks), ClaimStatus.HELD)
        return one, other, tasks

    def _requeue(self) -> None:
        while self._open:
            returned = list(self._open.items())[:BATCH_SIZE]
            name = self._claimant.name
            call = requeue_call(self._plans.keys, name, "own", len(returned), returned)
            left = self._store.run(call)  # the last ones, if the tasks are large
            for token, _ in returned[: len(returned) - left]:
                del self._open[token]

    def _report(self, settled: Sequence[int] = (), acknowledged: Sequence[str] = ()) -> list[Any]:
        """Run :meth:`_report_call`, again if the server is lost."""
        call = self._report_call(settled, acknowledged)
        reply: list[Any] = retry_outage(partial(self._store.run, call), self._claimant.name)
        return reply

    def _report_call(self, settled: Sequence[int] = (), acknowledged: Sequence[str] = ()) -> Call:
        """Return the call that renews the lease and settles; it replies a dead worker, too."""
        return claim_call(
            self._plans.keys,
            self._claimant.name,
            (),
            range(0),
            lease=self._claimant.lease,
            settled=settled,
            acknowledged=acknowledged,
        )
