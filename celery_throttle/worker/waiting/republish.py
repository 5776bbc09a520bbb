"""Sends messages back to their queues: at once or, with RabbitMQ, after a delay at the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp.exceptions import MessageNacked
from celery.utils.log import get_logger
from kombu import Producer
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_LEVEL,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from celery_throttle.tasks.messages.publishing import confirming, publish
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker import tuning

logger = get_logger(__name__)

#: Longest delay at RabbitMQ.
_MAX_DELAY_SECONDS = float(2**MAX_LEVEL)


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
