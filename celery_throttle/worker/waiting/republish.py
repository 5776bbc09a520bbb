"""Sends messages back to their queues, at once or, with RabbitMQ, after a delay that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from kombu import Producer
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_LEVEL,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

if TYPE_CHECKING:
    from kombu.message import Message

    from celery_throttle.messages.routing import Origin

logger = get_logger(__name__)

#: Seconds for which RabbitMQ waits for an acknowledgement, unless it is set (consumer_timeout).
CONSUMER_TIMEOUT = 1800.0

#: Seconds for which kombu's transports that keep unacknowledged messages themselves wait, likewise.
VISIBILITY_TIMEOUT = 3600.0

#: Longest delay in seconds that RabbitMQ is asked for.
LONGEST = float(2**MAX_LEVEL)

#: What a transport puts among the properties of a message that it delivers.
_OF_THE_TRANSPORT = (
    *("delivery_info", "delivery_tag", "body_encoding"),
    *("application_headers", "content_type", "content_encoding"),
)


class Sender:
    """Of one connection to the broker.

    Args:
        consumer: Celery's.
        origin: tells the queue of a message.

    Attributes:
        patience: seconds for which the broker surely waits for a message to be acknowledged.
    """

    def __init__(self, consumer: Any, origin: Origin) -> None:
        self._c = consumer
        self._origin = origin
        transport = consumer.connection.transport
        options = consumer.connection.transport_options or {}
        self._amqp: bool = transport.driver_type == "amqp"
        timeout = CONSUMER_TIMEOUT if self._amqp else VISIBILITY_TIMEOUT
        self.patience = float(options.get("visibility_timeout", timeout)) / 2
        self._errors = (*consumer.connection_errors, *consumer.channel_errors)
        self._connection: Any = None
        self._bound: set[str] = set()

    def delays(self, request: Any) -> bool:
        """Whether the broker can keep a message for a while."""
        queue = self._origin.queue_of(request.message)
        if self._amqp and queue not in self._bound:
            self._amqp = self._tried(f"let queue {queue} delay messages", self._bind, queue)
        return self._amqp

    def send_back(self, request: Any, headers: dict[str, Any], delay: float) -> bool:
        """Publish a copy with more headers; tells whether the broker has it.

        Before that the message itself must not be acknowledged: a crash in between costs a second
        delivery. A delay is in whole seconds, rounded down.
        """
        message, seconds = request.message, int(min(delay, LONGEST))
        exchange, routing_key = "", self._origin.queue_of(message)  # however the queue is bound
        if seconds:
            exchange = level_name(MAX_LEVEL)
            routing_key = calculate_routing_key(seconds, routing_key)
        what = f"send task {request.id} back"
        return self._tried(what, self._publish, message, headers, exchange, routing_key)

    def _tried(self, what: str, action: Callable[..., None], *args: Any) -> bool:
        try:
            action(*args)
        except self._errors as error:
            logger.warning("Could not %s: %r", what, error)
            self.close()
            return False
        return True

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._c.app.connection_for_write()
            options = self._connection.transport_options or {}
            # Only then RabbitMQ tells that it has a message.
            self._connection.transport_options = {**options, "confirm_publish": True}
        return self._connection

    def _bind(self, queue: str) -> None:
        """Celery's own delayed delivery, bound to the queue itself: its exchange may be direct."""
        connection = self._connected()
        if not self._bound:
            kind = self._c.app.conf.broker_native_delayed_delivery_queue_type
            declare_native_delayed_delivery_exchanges_and_queues(connection, kind)
        connection.default_channel.queue_bind(queue, CELERY_DELAYED_DELIVERY_EXCHANGE, f"#.{queue}")
        self._bound.add(queue)

    def _publish(
        self, message: Message, more: dict[str, Any], exchange: str, routing_key: str
    ) -> None:
        headers = {**message.headers, **more}
        properties: dict[str, Any] = {
            name: value
            for name, value in message.properties.items()
            if name not in _OF_THE_TRANSPORT
        }
        expiration = properties.pop("expiration", None)
        Producer(self._connected(), auto_declare=False).publish(
            message.body,
            exchange=exchange,
            routing_key=routing_key,
            headers=headers,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            # It was undone when the message came.
            compression=headers.pop("compression", None),
            expiration=None if expiration is None else int(expiration) / 1000,
            **properties,
        )

    def close(self) -> None:
        """The connection to the broker is lost, or the worker is shutting down."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
