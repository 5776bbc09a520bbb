"""Requests that wait a moment in the gate, so that several ask the server in one round trip.

:class:`Batch` gathers requests that take quota, :class:`NextRound` those that are decided, and so
parked, together.

To Celery they stay reserved, unacknowledged and without a process. When Celery loses the broker it
drops them, and the broker delivers them once more.
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

#: Calls a function after some seconds, with arguments.
CallLater = Callable[[float, Callable[..., None], tuple[Any, ...]], Any]


@dataclass(eq=False, repr=False)
class Batch:
    """Gathers requests that come fast, but one by one, so that they ask in one call."""

    admit_again: Callable[[Any], None]
    call_later: CallLater
    #: Returns the requests that wait for a process; those ask together already.
    waiting: Callable[[], Iterable[Any]]

    def __post_init__(self) -> None:
        self._requests: deque[Any] = deque()
        self._admitting = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests)

    def add(self, request: Any) -> bool:
        """Gather a request; False if it should ask now."""
        if self._admitting or any(self.waiting()):
            return False
        request.throttle_state.gather()
        self._requests.append(request)
        if len(self._requests) > tuning.QUOTA_BATCH_SIZE:
            self._admit_all()
        elif len(self._requests) == 1:
            self.call_later(tuning.GATHER_SECONDS, self._admit_all, ())
        return True

    def _admit_all(self) -> None:
        self._admitting = True
        try:
            while self._requests:
                self.admit_again(self._requests.popleft())
        finally:
            self._admitting = False


@dataclass(eq=False, repr=False)
class NextRound:
    """Decides requests in the next round of the worker's loop.

    Requests for slots come here: when a process becomes free, all that waited for it come to the
    gate at once, before the end of the task that had the process is known; its slot is for the
    first in line. So do all requests while the server is slow, and tasks that met a limit in their
    bodies, from whatever thread they ended in.
    """

    #: Decides some requests; those that may run come to the gate once more.
    decide: Callable[[Sequence[Any]], None]
    call_later: CallLater
    backoff: Backoff
    #: Calls a function in the worker's loop, from any thread.
    call_soon: Callable[..., Any]

    def __post_init__(self) -> None:
        self._requests: deque[Any] = deque()
        self._lock = threading.Lock()
        self._expected = False

    def add(self, request: Any) -> None:
        """Add a request to the next round. Thread-safe."""
        request.throttle_state.defer()
        with self._lock:
            self._requests.append(request)
            first, self._expected = not self._expected, True
        if first:
            self.call_soon(self.backoff.run_or_queue, self._decide_some)

    def decide_all(self) -> None:
        """Decide at once the requests that nobody else has: there are no more rounds."""
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
