"""Reports the outcomes of tasks in fan-outs to the server.

A report may be late or repeated without harm. An outcome that a worker had not reported when it was
killed counts as running, unless the task is delivered again.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from celery_throttle.errors import StoreError
from celery_throttle.operations.fan_outs import DONE, FAILED, REVOKED, outcomes_call
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.tasks.task_limits import FAN_OUT_HEADER, FAN_OUT_SHARD_HEADER
from celery_throttle.worker import tuning
from celery_throttle.worker.error_log import ErrorLog
from celery_throttle.worker.hooks.timers import Alarm, Timers

#: Outcomes by Celery's event, unless that says that the task comes again (``requeue``).
OUTCOMES = {
    "task-succeeded": DONE,
    "task-failed": FAILED,
    "task-rejected": FAILED,
    "task-revoked": REVOKED,
}


class FanOutOutcomes:
    """Gathers the outcomes of one worker's tasks and reports them to one shard. Thread-safe.

    Attributes:
        by_shard: the outcomes for each shard by its name, if the worker has several.
        call: calls the function that reports outcomes, which may block, in the worker's loop.
    """

    def __init__(self, store: Store, keys: Keys, timers: Timers) -> None:
        self.by_shard: Mapping[str, FanOutOutcomes] = {}
        self.call: Callable[[Callable[[], None]], None] = lambda function: function()
        self._store = store
        self._keys = keys
        #: Name of the fan-out, id of the task, and outcome.
        self._gathered: deque[tuple[str, str, str]] = deque()
        self._lock = threading.Lock()
        self._alarm = Alarm(timers, lambda: self.call(self.report))
        self._error_log = ErrorLog(
            "The server refuses to record outcomes of fan-outs; this worker tries again."
        )

    def record(self, headers: Mapping[str, Any], outcome: str) -> None:
        """Record how a task has ended, if the headers of its message name a fan-out.

        A task that was drained may have come to another shard than that of its fan-out: its limits
        may have moved, or have become wrong.
        """
        name = headers.get(FAN_OUT_HEADER)
        if name is not None:
            shard = str(headers.get(FAN_OUT_SHARD_HEADER, ""))
            self.by_shard.get(shard, self).add(str(name), str(headers.get("id")), outcome)

    def add(self, fan_out: str, task_id: str, outcome: str) -> None:
        """Add the outcome of a task of a fan-out of this shard."""
        self._gathered.append((fan_out, task_id, outcome))
        self._alarm.set(tuning.OUTCOME_REPORT_SECONDS)

    def report(self) -> None:
        """Report all outcomes; if the server cannot be reached, later."""
        with self._lock:
            while self._gathered:
                count = min(tuning.OUTCOME_BATCH_SIZE, len(self._gathered))
                batch = [self._gathered.popleft() for _ in range(count)]
                rows = defaultdict(list)
                for name, task_id, outcome in batch:
                    rows[name].append((task_id, outcome))
                try:
                    for name in rows:
                        self._store.run(outcomes_call(self._keys.fan_out(name), rows[name]))
                except StoreError as error:
                    self._error_log.log(error)
                    self._gathered.extendleft(reversed(batch))
                    self._alarm.set(tuning.OUTCOME_RETRY_SECONDS)
                    return
