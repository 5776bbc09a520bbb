"""Where a message came from: its queue, and what its priority means there."""

from __future__ import annotations

from typing import Any

#: Priorities are 0 to 255.
_HIGHEST = 255


def rank_of(priority: Any, driver_type: str) -> int:
    """Rank of a message's priority, 0 to 255, the lowest first.

    With Redis as the broker a low number is served first, with the others a high one.
    """
    level = min(_HIGHEST, max(0, priority)) if isinstance(priority, int) else 0
    return level if driver_type == "redis" else _HIGHEST - level


class Origin:
    """Reads messages of one consumer."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._driver_type = str(consumer.connection.transport.driver_type)

    def names(self) -> tuple[str, ...]:
        """The queues this worker consumes now."""
        return tuple(queue.name for queue in self._consumer.task_consumer.queues)

    def queue_of(self, message: Any) -> str:
        """The queue a message came from.

        Brokers say it by the consumer's tag (AMQP) or only by exchange and routing key; then it is
        the consumed queue bound so, else one that this worker consumes: it will be served.
        """
        about = message.delivery_info or {}  # as it was sent: anything may be in it
        tag = about.get("consumer_tag")
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
        queues = self._consumer.task_consumer.queues
        for queue in queues:
            if (queue.exchange.name, queue.routing_key) == (exchange, routing_key):
                return str(queue.name)
        names = [str(queue.name) for queue in queues]
        if routing_key in names:
            return routing_key
        for queue in queues:
            if queue.exchange.name == exchange:
                return str(queue.name)
        return names[0]

    def rank_of(self, message: Any) -> int:
        """See :func:`rank_of`."""
        return rank_of((message.properties or {}).get("priority"), self._driver_type)
