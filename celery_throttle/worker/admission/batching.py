"""Requests that wait a moment at the gate, so that one round trip decides about several.

:class:`QuotaBatch` gathers requests for a call that takes quota, :class:`DecisionBatch` those for a
call that decides, and so parks. To Celery they stay reserved, unacknowledged and without a process.
When Celery loses the broker it drops them, and the broker delivers them once more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery_throttle.worker import tuning
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.task_state import Status

#: Calls a function after some seconds, with arguments.
CallLater = Callable[[float, Callable[..., None], tuple[Any, ...]], Any]


@dataclass(eq=False, repr=False)
class QuotaBatch:
    """Gathers requests that come fast, but one by one, so that one call takes their quota."""

    #: Brings a request to the gate once more.
    readmit: Callable[[Any], None]
    call_later: CallLater
    #: Returns the requests that wait for a process; one call takes quota for those already.
    queued: Callable[[], Iterable[Any]]

    def __post_init__(self) -> None:
        self._requests: deque[Any] = deque()
        self._readmitting = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests)

    def has_room(self) -> bool:
        """Return whether to gather a request now; otherwise its quota is to be taken at once."""
        return not self._readmitting and not any(self.queued())

    def add(self, request: Any) -> Status:
        """Gather a request for some milliseconds."""
        status: Status = request.throttle_state.gather()
        self._requests.append(request)
        if len(self._requests) > tuning.QUOTA_BATCH_SIZE:
            self._readmit_all()
        elif len(self._requests) == 1:
            self.call_later(tuning.GATHER_SECONDS, self._readmit_all, ())
        return status

    def _readmit_all(self) -> None:
        self._readmitting = True
        try:
            while self._requests:
                self.readmit(self._requests.popleft())
        finally:
            self._readmitting = False


@dataclass(eq=False, repr=False)
class DecisionBatch:
    """Decides about requests in the next round of the worker's loop.

    Requests for slots come here: when a process becomes free, all that waited for it come to the
    gate at once, before the end of the task that had the process is known; its slot is for the
    first in line. So do all requests while the server is slow, and tasks that a limit refused in
    their bodies, from whatever thread they ended in.
    """

    #: Decides about some requests; those that may run come to the gate once more.
    decide: Callable[[Sequence[Any]], None]
    call_later: CallLater
    backoff: Backoff
    #: Calls a function in the worker's loop, from any thread.
    call_soon: Callable[..., Any]

    def __post_init__(self) -> None:
        self._requests: deque[Any] = deque()
        self._lock = threading.Lock()
        self._expected = False

    def add(self, request: Any) -> Status:
        """Add a request to the next round. Thread-safe."""
        status: Status = request.throttle_state.defer()
        with self._lock:
            self._requests.append(request)
            first, self._expected = not self._expected, True
        if first:
            self.call_soon(self.backoff.run_or_queue, self._decide_some)
        return status

    def decide_all(self) -> None:
        """Decide at once about the requests that nobody else has: there are no more rounds."""
        while self._requests:
            with suppress(IndexError):  # another thread was faster
                request = self._requests.popleft()
                if request.acknowledged:
                    self.decide([request])

    def _decide_some(self) -> None:
        some: list[Any] = []
        size = 0
        most, most_bytes = tuning.DECISION_BATCH_SIZE, tuning.DECISION_BATCH_BYTES
        while self._requests and len(some) < most and size < most_bytes:
            some.append(self._requests.popleft())
            size += len(some[-1].message.body or b"")
        try:
            self.decide(some)
        finally:
            with self._lock:
                self._expected = bool(self._requests)
            if self._expected:
                args = (self._decide_some,)
                self.call_later(tuning.NEXT_ROUND_SECONDS, self.backoff.run_or_queue, args)
