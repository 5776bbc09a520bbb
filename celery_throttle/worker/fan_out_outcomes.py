"""Tells how the tasks of fan-outs have ended.

Told late or twice it does no harm; what a worker had not told when it was killed counts as running,
if it is not delivered once more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import StoreError
from celery_throttle.fanout.progress import RATE_SAMPLE_SECONDS, RATE_STALE_SECONDS
from celery_throttle.limits.duration import to_us
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.tasks.task_limits import FAN_OUT_HEADER
from celery_throttle.worker.health.error_log import Complaints

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

DONE, FAILED, REVOKED = "done", "failed", "revoked"

#: By the event that Celery sends, if it does not say that the task comes again (``requeue``).
OUTCOMES = {
    "task-succeeded": DONE,
    "task-failed": FAILED,
    "task-rejected": FAILED,
    "task-revoked": REVOKED,
}

#: Seconds for which outcomes are gathered, and how many one call tells.
GATHER, MANY = 0.05, 500

#: Seconds until a server that could not be told is told again.
AGAIN = 1.0


class Outcomes:
    """Of one worker. Called from any thread.

    Args:
        throttle: the app's limits.
        later: called with seconds, after which :meth:`tell` is to be called.
    """

    def __init__(self, throttle: Throttle, later: Callable[[float], None]) -> None:
        self._throttle = throttle
        self._later = later
        self._untold: deque[tuple[str, str, str]] = deque()
        self._alone = threading.Lock()
        self._complaints = Complaints(
            "The server of the limits does not take down how tasks of fan-outs ended; this worker "
            "tells it again."
        )

    def note(self, headers: Mapping[str, Any], outcome: str) -> None:
        """A task has ended: by its headers."""
        name = headers.get(FAN_OUT_HEADER)
        if name is not None:
            self._untold.append((str(name), str(headers.get("id")), outcome))
            self._later(GATHER)

    def tell(self) -> None:
        """Tell the server, or try again later."""
        with self._alone:
            while self._untold:
                told = [self._untold.popleft() for _ in range(min(MANY, len(self._untold)))]
                try:
                    self._tell(told)
                except StoreError as error:
                    self._complaints.log(error)
                    self._untold.extendleft(reversed(told))
                    self._later(AGAIN)
                    return

    def _tell(self, told: list[tuple[str, str, str]]) -> None:
        for name in dict.fromkeys(name for name, _, _ in told):
            args: list[Argument] = ["", to_us(RATE_SAMPLE_SECONDS), to_us(RATE_STALE_SECONDS)]
            for of, task_id, outcome in told:
                if of == name:
                    args += (task_id, outcome)
            self._throttle.store.run(
                Call(script("record_outcomes"), [self._throttle.keys.fan_out(name)], args)
            )
