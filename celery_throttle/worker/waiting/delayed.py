"""Tasks that come to the gate again later, where there is no line for them to join.

Where the broker can delay messages (RabbitMQ, by Celery's delayed delivery), they go back to it.
Elsewhere they wait as Celery lets tasks with an ETA wait: in this worker, their messages
unacknowledged, without a process, and without one of the prefetch slots, so that other tasks are
not held up. No broker waits for an acknowledgement for ever, so a message that waits long goes back
to its queue in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from amqp.exceptions import MessageNacked
from celery.utils.log import get_logger
from celery.worker import state
from kombu import Producer
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_LEVEL,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from celery_throttle.errors import StoreUnavailableError
from celery_throttle.tasks.messages.packing import REPUBLISHED_HEADER
from celery_throttle.tasks.messages.publishing import confirming, publish
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker import tuning
from celery_throttle.worker.health.loop_calls import LoopCalls
from celery_throttle.worker.hooks.announcements import send_receipt
from celery_throttle.worker.hooks.timers import Alarm, Timers
from celery_throttle.worker.task_state import Status, fail
from celery_throttle.worker.waiting.prefetch import Prefetch

logger = get_logger(__name__)

#: Longest delay at RabbitMQ.
_MAX_DELAY_SECONDS = float(2**MAX_LEVEL)

_NOWHERE = "a task met a limit, and neither its line nor its queue can be reached"


class _Delay(NamedTuple):
    """One delayed task."""

    timer: Any  #: ends the delay; None if the end of the outage does
    freed_slot: bool  #: whether its prefetch slot is free meanwhile
    awaits_reply: bool = False  #: whether a late reply decides about it, so nothing else may


@dataclass(eq=False, repr=False)
class DelayedTasks:
    """The delayed tasks of one connection to the broker; when it is lost, Celery drops them all."""

    timers: Timers
    calls: LoopCalls
    republisher: Republisher
    prefetch: Prefetch
    #: Brings a request to the gate once more.
    readmit: Callable[[Any], None]
    #: Held while a gate decides. What ends a delay may come before the decision has begun it:
    #: without an event loop, another thread or greenlet goes on meanwhile.
    deciding: AbstractContextManager[Any]

    def __post_init__(self) -> None:
        self._delays: dict[Any, _Delay] = {}
        #: Requests whose delays are to end, some in each round of the worker's loop.
        self._ending: deque[Any] = deque()
        self._alarm = Alarm(self.timers, lambda: self.calls.run_or_queue(self._end_some))

    def __len__(self) -> int:
        return len(self._delays)

    def add(self, request: Any, seconds: float | None, broker_wait_until: int = 0) -> Status:
        """Delay a request for some seconds; None: until the end of the outage.

        Returns ``DELAYED``, or ``PARKED`` if the message went back to its queue.
        ``broker_wait_until``: when it may run (us, by the server's clock), if the server said so.
        """
        task, longest = request.throttle_state, self.republisher.unacked_seconds
        task.delay(broker_wait_until)
        send_receipt(request, waits=True, expected=seconds)
        delay = tuning.OUTAGE_REPUBLISH_SECONDS if seconds is None else seconds
        # A task that may be in a line as well must be marked as delivered before, so it stays here.
        is_long = delay >= tuning.MIN_REPUBLISH_SECONDS
        if not task.in_doubt and is_long and self.republisher.can_delay(request):
            self._send_or_wait(request, delay)
        elif request.acknowledged:  # it ran before: nobody else has it
            self._send_or_wait(request)
        elif seconds is not None and seconds > longest:
            self._wait(request, longest, self._renew)
        else:
            self._wait(request, seconds, self._end)
        status: Status = task.status
        return status

    def keep(self, request: Any) -> Status:
        """Keep a request in this worker until :meth:`end`."""
        return self._keep(request, awaits_reply=False)

    def await_reply(self, request: Any) -> Status:
        """Keep a request in this worker until :meth:`remove`: a late reply decides about it."""
        return self._keep(request, awaits_reply=True)

    def end(self, request: Any) -> None:
        """Bring a request to the gate now, if it is delayed and awaits no reply."""
        with self.deciding:
            delay = self._delays.get(request)
        if delay is not None and not delay.awaits_reply:
            if delay.timer is not None:
                self.timers.cancel(delay.timer)
            self._end(request)

    def end_soon(self, requests: Iterable[Any]) -> None:
        """Bring requests to the gate as :meth:`end` does, some in each round, after late calls."""
        self._ending.extend(requests)
        # Never at once: without an event loop a call may end before the request is delayed.
        self._alarm.set(0.0)

    def end_all(self) -> None:
        """Bring all requests to the gate as :meth:`end_soon` does, the oldest first.

        Those that are delayed once more wait for their new time.
        """
        with self.deciding:
            requests = list(self._delays)
        self.end_soon(requests)

    def _end_some(self) -> None:
        for _ in range(min(len(self._ending), tuning.DELAYED_ROUND_SIZE)):
            self.end(self._ending.popleft())
        if self._ending:
            self._alarm.set(tuning.DELAYED_ROUND_SECONDS)

    def forget(self) -> None:
        """The connection is lost, or the worker stops: the broker still has the messages."""
        for request, delay in self._delays.items():
            if delay.timer is not None:
                self.timers.cancel(delay.timer)
            if request.acknowledged and request in state.reserved_requests:
                fail(request, StoreUnavailableError(_NOWHERE))
        self._delays.clear()

    def send_back(self, request: Any, delay: float = 0.0) -> bool:
        """Send a message back to its queue, after a delay in seconds; False if that failed."""
        task = request.throttle_state
        headers = task.message_headers()
        headers[REPUBLISHED_HEADER] = bool(request.delivery_info.get("redelivered"))
        sent = self.republisher.republish(request, headers, delay)
        if sent:
            task.park()
            send_receipt(request, waits=True)
            state.task_ready(request)
            request.acknowledge()
        return sent

    def _keep(self, request: Any, *, awaits_reply: bool) -> Status:
        status: Status = request.throttle_state.delay()
        send_receipt(request, waits=True)
        self._wait(request, None, self._end, awaits_reply=awaits_reply)
        return status

    def _wait(
        self,
        request: Any,
        seconds: float | None,
        then: Callable[[Any], None],
        *,
        awaits_reply: bool = False,
    ) -> None:
        free_slot = len(self._delays) < tuning.MAX_FREED_PREFETCH_SLOTS
        if free_slot:
            self.prefetch.free(request.message)
        timer = None if seconds is None else self.timers.call_after(seconds, then, (request,))
        self._delays[request] = _Delay(timer, free_slot, awaits_reply)

    def remove(self, request: Any) -> None:
        """End the delay of a request, if it is delayed, without bringing it to the gate."""
        delay = self._delays.pop(request, None)
        if delay is not None and delay.freed_slot:
            self.prefetch.take(request.message)

    def _end(self, request: Any) -> None:
        self.remove(request)
        self.readmit(request)

    def _renew(self, request: Any) -> None:
        self.remove(request)
        self._send_or_wait(request)

    def _send_or_wait(self, request: Any, delay: float = 0.0) -> None:
        if not self.send_back(request, delay):  # the broker still has it
            self._wait(request, tuning.MIN_REPUBLISH_SECONDS, self._end)


class Republisher:
    """Sends messages back to their queues, for one connection to the broker."""

    def __init__(self, consumer: Any, routing: Routing) -> None:
        self._consumer = consumer
        self._routing = routing
        transport = consumer.connection.transport
        options = consumer.connection.transport_options or {}
        self._amqp: bool = transport.driver_type == "amqp"
        default = tuning.VISIBILITY_TIMEOUT_SECONDS
        if self._amqp:
            default = tuning.RABBITMQ_CONSUMER_TIMEOUT_SECONDS
        #: How long a message may stay unacknowledged: half of what the broker allows.
        self.unacked_seconds = float(options.get("visibility_timeout", default)) / 2
        self._errors = (*consumer.connection_errors, *consumer.channel_errors, MessageNacked)
        self._connection: Any = None
        self._bound_queues: set[str] = set()

    def can_delay(self, request: Any) -> bool:
        """Return whether the broker can delay the message of a request."""
        queue = self._routing.queue_of(request.message)
        if self._amqp and queue not in self._bound_queues:
            self._amqp = self._try(f"set up delayed delivery to queue {queue}", self._bind, queue)
        return self._amqp

    def republish(self, request: Any, headers: dict[str, Any], delay: float) -> bool:
        """Publish a copy of a message; return whether the broker has it.

        The message itself must be acknowledged afterwards: a crash in between costs a second
        delivery. The broker delivers it after ``delay``, rounded down to whole seconds.
        """
        message, seconds = request.message, int(min(delay, _MAX_DELAY_SECONDS))
        exchange, routing_key = "", self._routing.queue_of(message)  # however the queue is bound
        if seconds:
            exchange = level_name(MAX_LEVEL)
            routing_key = calculate_routing_key(seconds, routing_key)

        def send() -> None:
            producer = Producer(self._connect(), auto_declare=False)
            publish(producer, message, exchange, routing_key, headers)

        return self._try(f"send task {request.id} back to its queue", send)

    def _try(self, purpose: str, function: Callable[..., None], *args: Any) -> bool:
        try:
            function(*args)
        except self._errors as error:
            logger.warning("Could not %s: %r", purpose, error)
            self.close()
            return False
        return True

    def _connect(self) -> Any:
        if self._connection is None:
            self._connection = confirming(self._consumer.app.connection_for_write())
        return self._connection

    def _bind(self, queue: str) -> None:
        """Bind Celery's delayed delivery to the queue itself, as its exchange may be direct."""
        connection = self._connect()
        if not self._bound_queues:
            kind = self._consumer.app.conf.broker_native_delayed_delivery_queue_type
            declare_native_delayed_delivery_exchanges_and_queues(connection, kind)
        connection.default_channel.queue_bind(queue, CELERY_DELAYED_DELIVERY_EXCHANGE, f"#.{queue}")
        self._bound_queues.add(queue)

    def close(self) -> None:
        """Close the connection for publishing; a later call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
