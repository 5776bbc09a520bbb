"""Tasks that wait in this worker while there is no line for them to join.

They wait as Celery lets tasks with an ETA wait: without a process, and without a place among those
that are prefetched, so that others are not held up. Their messages stay unacknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Tasks that wait beyond these keep their places among those prefetched, so that no more come in.
MOST = 10_000

#: Tasks brought back in one turn of the worker's loop, and seconds until the next turn.
_FEW = 8
_TURN = 0.001


class Postponed:
    """Of one connection to the broker: when that is lost, Celery drops them all.

    Args:
        consumer: Celery's.
        bring: brings a request to the gate once more.
    """

    def __init__(self, consumer: Any, bring: Callable[[Any], None]) -> None:
        self._c = consumer
        self._bring = bring
        self._entries: dict[Any, tuple[Any, bool]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put_off(self, request: Any, seconds: float | None) -> None:
        """Bring a request after some seconds; None: when all are brought."""
        free = len(self._entries) < MOST
        if free:
            self._c.qos.increment_eventually()
        entry = None
        if seconds is not None:
            entry = self._c.timer.call_after(seconds, self._end, (request,))
        self._entries[request] = entry, free

    def _end(self, request: Any) -> None:
        _, free = self._entries.pop(request, (None, False))
        if free:
            self._c.qos.decrement_eventually()
        self._bring(request)

    def bring_all(self) -> None:
        """Bring them, the first first, some at a time."""
        for request, (entry, _) in list(self._entries.items())[:_FEW]:
            if entry is not None:
                self._c.timer.cancel(entry)
            self._end(request)
        if self._entries:
            self._c.timer.call_after(_TURN, self.bring_all)

    def forget(self) -> None:
        """The connection is lost, or the worker is shutting down: the broker has them still."""
        for entry, _ in self._entries.values():
            if entry is not None:
                self._c.timer.cancel(entry)
        self._entries.clear()
