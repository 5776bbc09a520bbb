"""Withdraws revoked tasks from their lines before quota is spent on them.

Celery tells every worker what is revoked: ids of tasks, and stamped headers with their values. The
ids are looked up among the waiting tasks. Each time a stamp is revoked, the waiting messages are
read, some at each poll.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from celery.worker import state

from celery_throttle.errors import StoreError
from celery_throttle.operations.lines import scan_call
from celery_throttle.operations.waiting import withdraw_call
from celery_throttle.store.script import Argument
from celery_throttle.tasks.messages import packing
from celery_throttle.worker import tuning
from celery_throttle.worker.claims.claims import ClaimedTask, Claims
from celery_throttle.worker.error_log import ErrorLog


@dataclass(eq=False, repr=False)
class RevokedTasks:
    """Finds the revoked tasks among those that wait in the queues of one worker."""

    claims: Claims
    lease: float  #: seconds of the worker's lease
    #: Returns the keys of the queues that it consumes, four each.
    queue_keys: Callable[[], list[str]]
    lock: threading.Lock  #: see :class:`~celery_throttle.worker.claims.call.ClaimCall`

    def __post_init__(self) -> None:
        self._error_log = ErrorLog(
            "The server refuses to withdraw revoked tasks from their lines; they wait, and this "
            "worker tries again."
        )
        self._id_count = 0
        self._ids: set[str] = set()
        self._stamps = ""
        self._search: Iterator[list[str]] = iter(())

    def withdraw(self) -> list[ClaimedTask]:
        """Withdraw tasks that were revoked since the last call; their quota is not taken."""
        tasks: list[ClaimedTask] = []
        try:
            self._withdraw(self._new_ids(), tasks)
            self._withdraw(self._new_stamped(), tasks)
        except StoreError as error:
            self._error_log.log(error)
            self._id_count, self._stamps = 0, ""
            self._ids.clear()
        return tasks

    def _new_ids(self) -> list[str]:
        count = len(state.revoked)
        # A full set keeps its length, whatever is added.
        if count == self._id_count and count < state.REVOKES_MAX:
            return []
        self._id_count = count
        ids = {str(task_id) for task_id in state.revoked}
        new = ids - self._ids
        self._ids = ids
        return sorted(new)

    def _new_stamped(self) -> list[str]:
        """Return ids of tasks with revoked stamps: some of them at each call."""
        stamps = repr(state.revoked_stamps)
        if stamps != self._stamps:
            self._stamps = stamps
            self._search = self._find_stamped() if state.revoked_stamps else iter(())
        return next(self._search, [])

    def _find_stamped(self) -> Iterator[list[str]]:
        for messages in self.queue_keys()[1::4]:
            cursor: Argument = "0"
            while True:
                cursor, *rows = self.claims.store.run(scan_call(messages, "messages", cursor))
                yield [task_id.decode() for task_id, packed in rows if _is_revoked(packed)]
                if cursor == b"0":
                    break

    def _withdraw(self, ids: Sequence[str], tasks: list[ClaimedTask]) -> None:
        """Withdraw tasks, and add them to a list: also those before an error."""
        for start in range(0, len(ids), tuning.REVOKED_BATCH_SIZE):
            batch = ids[start : start + tuning.REVOKED_BATCH_SIZE]
            while some := self._withdraw_some(batch):  # not all in one call if they are large
                tasks += some

    def _withdraw_some(self, ids: Sequence[str]) -> list[ClaimedTask]:
        first = self.claims.reserve_tokens(len(ids))
        keys, worker = self.claims.keys, self.claims.worker
        call = withdraw_call(keys, worker, self.queue_keys(), first, ids, lease=self.lease)
        with self.lock:
            try:
                rows = self.claims.store.run(call)
            except StoreError:
                self.claims.requeue_uncertain(range(first, first + len(ids)))
                raise
            return [self.claims.receive(row) for row in rows]


def _is_revoked(packed: bytes) -> bool:
    """Return whether a waiting message has a revoked stamp, by the rules of Celery's request."""
    try:
        headers = packing.headers(packed)
    except packing.UnreadableMessageError:
        return False
    stamps = headers.get("stamps") or {}
    for name in headers.get("stamped_headers") or ():
        revoked = state.revoked_stamps.get(name)
        if revoked is not None and name in stamps:
            revoked_values = revoked if isinstance(revoked, (list, tuple, set)) else [revoked]
            values = stamps[name] if isinstance(stamps[name], (list, tuple)) else [stamps[name]]
            if any(value in revoked_values for value in values):
                return True
    return False
