"""Requests that the gate holds for some milliseconds, before it asks for them or decides.

They stay what they are to Celery: reserved, unacknowledged, without a process. When it loses the
broker it drops them, and the broker delivers them once more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_throttle.worker.quota import BATCH

if TYPE_CHECKING:
    from celery_throttle.worker.pace import Pace

#: Calls something after some seconds, with arguments.
Later = Callable[[float, Callable[..., None], tuple[Any, ...]], Any]

#: Seconds for which tasks that come fast, but one by one, are gathered.
GATHER = 0.004

#: Seconds of one turn of the worker's loop in which tasks that stepped aside are decided, and until
#: the next: what has ended meanwhile comes first.
TURN = 0.001
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
    """Requests that are decided in another turn of the loop.

    When a process is free, all that waited for it comes to the gate at once, and before anybody is
    told of the end of the task that had it: its slot is for the first in line.

    Args:
        decide: whether one may run now; if not, it is dealt with.
        run: brings one that may to the gate once more.
        later: see :data:`Later`.
        pace: of calls to the server.
    """

    def __init__(
        self,
        decide: Callable[[Any], bool],
        run: Callable[[Any], None],
        later: Later,
        pace: Pace,
    ) -> None:
        self._decide = decide
        self._run = run
        self._later = later
        self._pace = pace
        self._requests: deque[Any] = deque()

    def add(self, request: Any) -> None:
        """Hold a request until the next turn."""
        self._requests.append(request)
        if len(self._requests) == 1:
            self._later(self._pace.rest(), self._decide_some, ())

    def _decide_some(self) -> None:
        till = time.monotonic() + TURN
        try:
            while self._requests and time.monotonic() < till:
                request = self._requests.popleft()
                if request in state.reserved_requests and self._decide(request):
                    self._run(request)
        finally:
            if self._requests:
                self._later(max(NEXT_TURN, self._pace.rest()), self._decide_some, ())
