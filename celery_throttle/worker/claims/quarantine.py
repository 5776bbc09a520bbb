"""Quarantine: tasks for which this worker has no code are left to a worker that has it.

That happens during a deploy, and after its rollback. The tasks keep their places in their lines,
but do not hold up the tasks behind them. A worker that can run them recalls them. The label of a
task in quarantine is the version of its message and its name, separated by a space.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.operations.lines import recall_call, scan_call
from celery_throttle.store.script import Argument
from celery_throttle.tasks.messages import packing
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import Claim, ClaimedTask, Claims
from celery_throttle.worker.error_log import ErrorLog

logger = get_logger(__name__)

#: In place of a version: no code can read the message, so no worker recalls it.
_DAMAGED = "damaged"


@dataclass(eq=False, repr=False)
class Quarantine:
    """Puts tasks of one worker into quarantine, and recalls tasks from there."""

    claims: Claims
    #: Returns the names of the tasks that this worker can run.
    task_names: Callable[[], Collection[str]]
    #: Returns the names of the queues that it consumes, by their keys ``lines``.
    queues: Callable[[], Mapping[str, str]]

    def __post_init__(self) -> None:
        self._logged: set[str] = set()
        self._error_log = ErrorLog(
            "The server refuses to recall tasks from quarantine; they wait, and this worker tries "
            "again."
        )
        self._next_report_at = 0.0

    def put_unreadable(self, task: ClaimedTask) -> None:
        """Put a task into quarantine whose message, or even its name, cannot be read."""
        version = packing.version_of(task.packed)
        if version and version not in packing.VERSIONS:
            self.put(task.claim, f"{version} ")
            return
        logger.error(
            "Task %s cannot be read: it is damaged, or was stored by another version. It stays in "
            "quarantine, and the tasks behind it go on: drop it",
            task.task_id,
        )
        self.claims.quarantine(task.claim, f"{_DAMAGED} ")

    def put(self, claim: Claim, label: str) -> None:
        """Put a task into quarantine."""
        if label not in self._logged:
            self._logged.add(label)
            logger.warning("No code here for %s: left to a worker that has it", _describe(label))
        self.claims.quarantine(claim, label)

    def put_until_heartbeat(self, claim: Claim) -> None:
        """Put a task into quarantine until the next heartbeat of any worker."""
        self.claims.quarantine(claim, f"{packing.VERSIONS[-1]} ")

    def recall(self) -> None:
        """Requeue the tasks that this worker can run, and report the others. Thread-safe."""
        try:
            self._report(self._recall())
        except StoreError as error:
            self._error_log.log(error)

    def _recall(self) -> Counter[tuple[str, str]]:
        """Requeue tasks; return how many others there are, by queue and label."""
        task_names, queues, keys = self.task_names(), self.queues(), self.claims.keys
        store = self.claims.store
        others: Counter[tuple[str, str]] = Counter()
        cursor: Argument = "0"
        while cursor != b"0":
            cursor, *rows = store.run(scan_call(keys.quarantine, "quarantine", cursor))
            ids = []
            for task_id, packed_label, lines in rows:
                queue, label = queues.get(lines.decode()), packed_label.decode()
                version, _, name = label.partition(" ")
                if queue is None:
                    continue
                if version in packing.VERSIONS and (not name or name in task_names):
                    ids.append(task_id)
                else:
                    others[queue, label] += 1
            if ids:
                store.run(recall_call(keys, ids))
        return others

    def _report(self, others: Counter[tuple[str, str]]) -> None:
        """Warn of tasks that this worker cannot run."""
        if not others or time.monotonic() < self._next_report_at:
            return
        self._next_report_at = time.monotonic() + tuning.QUARANTINE_REPORT_SECONDS
        listed = [
            f"in queue {queue} {count} {_describe(label)}"
            for (queue, label), count in others.most_common(tuning.QUARANTINE_REPORT_COUNT)
        ]
        more = len(others) - len(listed)
        logger.warning(
            "Tasks wait for a worker that has code for them, as this one has none: %s%s",
            ", ".join(listed),
            f", and {more} others" if more else "",
        )


def _describe(label: str) -> str:
    version, _, name = label.partition(" ")
    return f"tasks {name}" if name else f"messages of version {version!r}"
