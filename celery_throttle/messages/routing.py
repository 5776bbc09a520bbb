"""Where a message came from: its queue, and what its priority means there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_throttle.messages.bindings import bindings_of, is_bound, is_temporary

if TYPE_CHECKING:
    from kombu import Queue

#: Priorities are 0 to 255.
_HIGHEST = 255


def rank_of(priority: Any, driver_type: str) -> int:
    """Rank of a message's priority, 0 to 255, the lowest first.

    With Redis as the broker a low number is served first, with the others a high one.
    """
    level = min(_HIGHEST, max(0, priority)) if isinstance(priority, int) else 0
    return level if driver_type == "redis" else _HIGHEST - level


class Origin:
    """Reads messages of one consumer, which does not consume yet."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._driver_type = str(consumer.connection.transport.driver_type)
        if self._driver_type != "amqp":
            _note_queues(consumer.task_consumer.channel)

    def queues(self) -> list[Queue]:
        """The queues this worker consumes now."""
        return list(self._consumer.task_consumer.queues)

    def names(self) -> tuple[str, ...]:
        """The names of these queues."""
        return tuple(queue.name for queue in self.queues())

    def is_temporary(self, name: str) -> bool:
        """Whether the broker deletes a queue of this worker with its last consumer."""
        return any(
            is_temporary(queue, self._driver_type) for queue in self.queues() if queue.name == name
        )

    def queue_of(self, message: Any) -> str:
        """The queue a message came from: from the broker, or before it waited in a line.

        AMQP brokers tell it by the consumer's tag, which says nothing to another consumer. Of a
        message that waited, it is kept with the message. Only messages that earlier versions put
        into lines, or that were sent straight to them, go by exchange and routing key.
        """
        known: str | None = getattr(message, "throttle_queue", None)
        if known is not None:  # its consumer may be gone, see `prefetch.py`
            return known
        about = message.delivery_info or {}  # as it was sent: anything may be in it
        tag = None if hasattr(message, "claim") else about.get("consumer_tag")
        tags = getattr(self._consumer.task_consumer, "_active_tags", {})
        for name, active in tags.items():
            if tag is not None and active == tag:
                return str(name)
        exchange, routing_key = about.get("exchange"), about.get("routing_key")
        return self._by_route(
            exchange if isinstance(exchange, str) else "",
            routing_key if isinstance(routing_key, str) else "",
        )

    def _by_route(self, exchange: str, routing_key: str) -> str:
        """The queue that is bound so, else one that this worker consumes: it will be served."""
        queues = self.queues()
        tests: list[Callable[[Queue], bool]] = [
            lambda queue: is_bound(queue, exchange, routing_key, self._driver_type),
            lambda queue: queue.name == routing_key,
            lambda queue: any(bound.name == exchange for bound, _ in bindings_of(queue)),
            lambda _: True,
        ]
        found = (queue.name for test in tests for queue in queues if test(queue))
        return str(next(found, routing_key))

    def rank_of(self, message: Any) -> int:
        """See :func:`rank_of`."""
        return rank_of((message.properties or {}).get("priority"), self._driver_type)


def _note_queues(channel: Any) -> None:
    """Let each message that a channel delivers have the name of its queue with it.

    Where kombu routes messages itself, they tell no consumer, only how they were sent.
    """
    consume = channel.basic_consume

    def basic_consume(queue: str, *args: Any, **options: Any) -> Any:
        callback = options.get("callback")
        if callback is not None:
            options["callback"] = noting(queue, callback)
        return consume(queue, *args, **options)

    def noting(queue: str, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(message: Any) -> Any:
            message.throttle_queue = queue
            return callback(message)

        return noted

    channel.basic_consume = basic_consume
