"""Tasks that come to the gate again later, where there is no line for them to join.

Where the broker can delay messages (RabbitMQ with quorum queues, as Celery sets it up), they go
back to it. Elsewhere they wait as Celery lets tasks with an ETA wait: in this worker, their
messages unacknowledged, without a process, and without a place among those that are prefetched, so
that others are not held up. No broker waits for ever to be told of a message: one that waits long
goes back to its queue in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_throttle.errors import StoreUnavailableError
from celery_throttle.messages.packing import SENT_BACK
from celery_throttle.worker.admission import requested_limits
from celery_throttle.worker.admission.recovery import fail

if TYPE_CHECKING:
    from celery_throttle.worker.timers import Timers
    from celery_throttle.worker.waiting.prefetch import Prefetch
    from celery_throttle.worker.waiting.republish import Sender

#: Tasks that wait beyond these keep their places among those prefetched, so that no more come in.
MOST = 10_000

#: Seconds for which it is worth while to send a message back.
WORTH = 2.0

#: Seconds after which the broker delivers a task again that waits until the server is back.
UNTIL_BACK = 5.0

#: Tasks brought back in one turn of the worker's loop, and seconds until the next turn.
_FEW = 8
_TURN = 0.001

_HEADER = "throttle_turn"

_NOWHERE = "a task met a limit, and neither its line nor its queue can be reached"


@dataclass(slots=True)
class _Entry:
    """What waits here: its timer, and whether its place among those prefetched is free."""

    timer: Any
    free: bool


class Postponed:
    """Of one connection to the broker: when that is lost, Celery drops them all.

    Args:
        consumer: Celery's.
        timers: of the worker.
        sender: sends messages back.
        prefetch: the prefetch slots of those that wait.
        bring: brings a request to the gate once more.
    """

    def __init__(
        self,
        consumer: Any,
        timers: Timers,
        sender: Sender,
        prefetch: Prefetch,
        bring: Callable[[Any], None],
    ) -> None:
        self._c = consumer
        self._timers = timers
        self._sender = sender
        self._prefetch = prefetch
        self._bring = bring
        self._entries: dict[Any, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put_off(self, request: Any, seconds: float | None, turn: int = 0) -> None:
        """Bring a request after some seconds; None: when all are brought.

        ``turn``: when its turn is, by the server's clock, if that was told.
        """
        request.throttle_turn = turn
        # What may be in a line as well must be known to have been delivered before.
        alike = "throttle_doubt" not in request.__dict__
        delay = UNTIL_BACK if seconds is None else seconds
        if alike and delay >= WORTH and self._sender.delays(request):
            self._send(request, delay)
        elif request.acknowledged:  # it ran before: nobody else has it
            self._send(request, 0.0)
        elif seconds is not None and seconds > self._sender.patience:
            self._wait(request, self._sender.patience, self._renew)
        else:
            self._wait(request, seconds, self._end)

    def bring_all(self) -> None:
        """Bring them, the first first, some at a time."""
        for request, entry in list(self._entries.items())[:_FEW]:
            if entry.timer is not None:
                self._timers.cancel(entry.timer)
            self._end(request)
        if self._entries:
            self._timers.call_after(_TURN, self.bring_all)

    def forget(self) -> None:
        """The connection is lost, or the worker is shutting down: the broker has them still."""
        for request, entry in self._entries.items():
            if entry.timer is not None:
                self._timers.cancel(entry.timer)
            if request.acknowledged and request in state.reserved_requests:
                fail(request, StoreUnavailableError(_NOWHERE))
        self._entries.clear()

    def _wait(self, request: Any, seconds: float | None, then: Callable[[Any], None]) -> None:
        free = len(self._entries) < MOST
        if free:
            self._prefetch.free(request.message)
        timer = None if seconds is None else self._timers.call_after(seconds, then, (request,))
        self._entries[request] = _Entry(timer, free)

    def _end(self, request: Any) -> None:
        self._leave(request)
        self._bring(request)

    def _renew(self, request: Any) -> None:
        self._leave(request)
        self._send(request, 0.0)

    def _leave(self, request: Any) -> None:
        entry = self._entries.pop(request, None)
        if entry is not None and entry.free:
            self._prefetch.take(request.message)

    def send_back(self, request: Any, delay: float = 0.0) -> bool:
        """Send it back to its queue; tells whether it is there."""
        headers = requested_limits.headers(request)
        headers[SENT_BACK] = bool(request.delivery_info.get("redelivered"))
        if turn_of(request):
            headers[_HEADER] = turn_of(request)
        sent = self._sender.send_back(request, headers, delay)
        if sent:
            state.task_ready(request)
            request.acknowledge()
        return sent

    def _send(self, request: Any, delay: float) -> None:
        if not self.send_back(request, delay):  # the broker has it still
            self._wait(request, WORTH, self._end)


def turn_of(request: Any) -> int:
    """When a request's turn is (us, by the server's clock); 0 if it was not told yet."""
    known = request.__dict__.get(_HEADER)
    if known is None:
        # Taken out: the task sees the headers it was sent with.
        known = request.throttle_turn = int(request.request_dict.pop(_HEADER, 0))
    return int(known)
