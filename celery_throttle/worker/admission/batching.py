"""Requests that the gate holds for a moment, before it asks for them or decides.

They stay what they are to Celery: reserved, unacknowledged, without a process. When it loses the
broker it drops them, and the broker delivers them once more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_throttle.worker.admission.quota import BATCH

if TYPE_CHECKING:
    from celery_throttle.worker.health.backoff import Pace

#: Calls something after some seconds, with arguments.
Later = Callable[[float, Callable[..., None], tuple[Any, ...]], Any]

#: Seconds for which tasks that come fast, but one by one, are gathered.
GATHER = 0.004

#: Tasks that stepped aside which are decided in one turn of the worker's loop, and seconds until
#: the next: what has ended meanwhile comes first.
TOGETHER = 8
NEXT_TURN = 0.0001


class Gathered:
    """Requests that come fast, but one by one: they come together and ask in one call.

    Args:
        bring: brings a request to the gate once more.
        later: see :data:`Later`.
        waiting: requests that wait for a process; together with these others ask already.
    """

    def __init__(
        self, bring: Callable[[Any], None], later: Later, waiting: Callable[[], Iterable[Any]]
    ) -> None:
        self._bring = bring
        self._later = later
        self._waiting = waiting
        self._requests: deque[Any] = deque()
        self._bringing = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests)

    def __contains__(self, request: Any) -> bool:
        return request in self._requests

    def add(self, request: Any) -> bool:
        """Hold a request, unless it is to ask now."""
        if self._bringing or any(self._waiting()):
            return False
        self._requests.append(request)
        if len(self._requests) > BATCH:
            self._bring_all()
        elif len(self._requests) == 1:
            self._later(GATHER, self._bring_all, ())
        return True

    def _bring_all(self) -> None:
        self._bringing = True
        try:
            while self._requests:
                self._bring(self._requests.popleft())
        finally:
            self._bringing = False


class SteppedAside:
    """Requests that are decided in another turn of the loop: slots, and all while a server is slow.

    When a process is free, all that waited for it comes to the gate at once, and before anybody is
    told of the end of the task that had it: its slot is for the first in line. Tasks that met a
    limit in their bodies come here as well, from whatever thread they ended in.

    Args:
        decide: called with some of them: what may run is brought to the gate once more.
        later: see :data:`Later`.
        pace: of calls to the server.
        soon: calls something in the worker's loop, from whatever thread.
    """

    def __init__(
        self,
        decide: Callable[[Sequence[Any]], None],
        later: Later,
        pace: Pace,
        soon: Callable[..., Any],
    ) -> None:
        self._decide = decide
        self._later = later
        self._pace = pace
        self._soon = soon
        self._requests: deque[Any] = deque()
        self._lock = threading.Lock()
        self._expected = False

    def add(self, request: Any) -> None:
        """Hold a request until the next turn."""
        with self._lock:
            self._requests.append(request)
            first, self._expected = not self._expected, True
        if first:
            self._soon(self._pace.in_turn, self._decide_some)

    def decide_all(self) -> None:
        """There are no more turns: decide those that nobody else has."""
        while self._requests:
            with suppress(IndexError):  # another thread was faster
                request = self._requests.popleft()
                if request.acknowledged:
                    self._decide([request])

    def _decide_some(self) -> None:
        few = [self._requests.popleft() for _ in range(min(TOGETHER, len(self._requests)))]
        try:
            self._decide(few)
        finally:
            with self._lock:
                self._expected = bool(self._requests)
            if self._expected:
                self._later(NEXT_TURN, self._pace.in_turn, (self._decide_some,))
