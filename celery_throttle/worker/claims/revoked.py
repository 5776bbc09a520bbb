"""Withdraws revoked tasks from their lines before quota is spent on them.

Celery tells every worker what is revoked: ids of tasks, and stamped headers with their values. The
ids are looked up among the waiting tasks. Each time a stamp is revoked, the waiting messages are
read, some at each poll.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery.utils.functional import maybe_list
from celery.worker import state

from celery_throttle.errors import StoreError
from celery_throttle.operations.lines import scan_call
from celery_throttle.operations.waiting import withdraw_call
from celery_throttle.store.script import Argument
from celery_throttle.tasks.messages import packing
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import ClaimedTask
from celery_throttle.worker.claims.call import ClaimCall
from celery_throttle.worker.error_log import ErrorLog


class RevokedTasks:
    """Finds the revoked tasks among those that wait in the queues of one worker.

    Args:
        call: the claim call of the worker, during which no task is withdrawn.
    """

    def __init__(self, call: ClaimCall) -> None:
        self._call = call
        self._claims = call.claims
        self._error_log = ErrorLog(
            "The server refuses to withdraw revoked tasks from their lines; they wait, and this "
            "worker tries again."
        )
        self._id_count = 0
        self._ids: set[str] = set()
        self._stamps = ""
        self._search: Iterator[Sequence[Argument]] = iter(())
        self._is_searching = False

    def has_new(self) -> bool:
        """Return whether tasks may have been revoked since the last call of :meth:`withdraw`."""
        is_full = len(state.revoked) >= state.REVOKES_MAX
        has_ids = len(state.revoked) != self._id_count or is_full
        return has_ids or self._is_searching or repr(state.revoked_stamps) != self._stamps

    def withdraw(self) -> list[ClaimedTask]:
        """Withdraw tasks that were revoked since the last call; their quota is not taken."""
        tasks: list[ClaimedTask] = []
        try:
            for ids in (self._new_ids(), self._new_stamped()):
                for start in range(0, len(ids), tuning.REVOKED_BATCH_SIZE):
                    batch = ids[start : start + tuning.REVOKED_BATCH_SIZE]
                    while some := self._withdraw(batch):  # not all in one call if they are large
                        tasks += some
        except StoreError as error:
            self._error_log.log(error)
            self._id_count, self._stamps = 0, ""
            self._ids.clear()
        return tasks

    def _new_ids(self) -> Sequence[Argument]:
        count = len(state.revoked)
        # A full set keeps its length, whatever is added.
        if count == self._id_count and count < state.REVOKES_MAX:
            return []
        self._id_count = count
        ids = {str(task_id) for task_id in state.revoked}
        new = ids - self._ids
        self._ids = ids
        return sorted(new)

    def _new_stamped(self) -> Sequence[Argument]:
        """Return ids of tasks with revoked stamps: some of them at each call."""
        stamps = repr(state.revoked_stamps)
        if stamps != self._stamps:
            self._stamps = stamps
            self._search = self._find_stamped() if state.revoked_stamps else iter(())
        ids = next(self._search, None)
        self._is_searching = ids is not None
        return ids or []

    def _find_stamped(self) -> Iterator[Sequence[Argument]]:
        for messages in self._call.queue_keys()[1::4]:
            cursor: Argument = "0"
            while True:
                cursor, *rows = self._claims.store.run(scan_call(messages, "messages", cursor))
                yield [task_id for task_id, packed in rows if _is_revoked(packed)]
                if cursor == b"0":
                    break

    def _withdraw(self, ids: Sequence[Argument]) -> list[ClaimedTask]:
        call, claims = self._call, self._claims
        first = claims.reserve_tokens(len(ids))
        withdraw = withdraw_call(
            claims.keys, claims.worker, call.queue_keys(), first, ids, lease=call.lease
        )
        with call.lock:
            try:
                rows = claims.store.run(withdraw)
            except StoreError:
                claims.requeue_uncertain(range(first, first + len(ids)))
                raise
            return [claims.receive(row) for row in rows]


def _is_revoked(packed: bytes) -> bool:
    """Return whether a waiting message has a revoked stamp, by the rules of Celery's request."""
    try:
        headers = packing.headers(packed)
        stamps = headers.get("stamps") or {}
        for name in headers.get("stamped_headers") or ():
            if name in stamps and name in state.revoked_stamps:
                revoked = maybe_list(state.revoked_stamps[name])
                if any(value in revoked for value in maybe_list(stamps[name])):
                    return True
    except (packing.UnreadableMessageError, TypeError):  # it must not hide the others
        pass
    return False
