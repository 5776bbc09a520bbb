"""The queue of a message, the rank of its priority there, and which queues get deleted."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from kombu import Exchange, Queue
from kombu.transport.virtual.exchange import TopicExchange

from celery_throttle.tasks.messages.packing import is_claimed

#: Priorities are 0 to 255.
_MAX_PRIORITY = 255

#: Consumers of one queue of which messages may still be in this worker.
_CONSUMER_COUNT = 3


def rank_of(priority: Any, driver_type: str) -> int:
    """Return the rank of a message's priority, 0 to 255; the lowest rank is served first.

    With Redis as the broker a low priority is served first, with other brokers a high one. As in
    kombu, a bool or an enum is its number, and whatever is no number counts as 0.
    """
    try:
        level = min(_MAX_PRIORITY, max(0, int(priority)))
    except (TypeError, ValueError, OverflowError):
        level = 0
    return level if driver_type == "redis" else _MAX_PRIORITY - level


class Routing:
    """The queues of one consumer, and the queue and rank of each message that it gets.

    It must be made after Celery's consumer has connected, and before it consumes.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._driver_type = str(consumer.connection.transport.driver_type)
        #: The tags of the last consumers of each queue, also of one that is consumed no more.
        self._tags: dict[str, deque[Any]] = {}
        _note_queues(consumer.task_consumer.channel, self._tags)

    def queues(self) -> list[Queue]:
        """Return the queues that this worker consumes now."""
        return list(self._consumer.task_consumer.queues)

    def names(self) -> tuple[str, ...]:
        """Return the names of these queues."""
        return tuple(queue.name for queue in self.queues())

    def is_temporary(self, name: str) -> bool:
        """Return whether the broker deletes a queue of this worker with its last consumer."""
        return any(
            is_temporary(queue, self._driver_type) for queue in self.queues() if queue.name == name
        )

    def queue_of(self, message: Any) -> str:
        """Return the queue that a message came from: from the broker, or before it waited.

        AMQP brokers name it by the consumer's tag, which means nothing to another worker. With a
        message that waited in a line, the name of its queue is kept. Only messages that were sent
        straight to their lines go by exchange and routing key.
        """
        noted: str | None = getattr(message, "throttle_queue", None)
        if noted is not None:  # its consumer may be gone, see `prefetch.py`
            return noted
        info = message.delivery_info or {}  # as it was sent: it may hold anything
        tag = None if is_claimed(message) else info.get("consumer_tag")
        for name, tags in list(self._tags.items()):
            if tag is not None and tag in tags:
                return name
        exchange, routing_key = info.get("exchange"), info.get("routing_key")
        return self._queue_by_route(
            exchange if isinstance(exchange, str) else "",
            routing_key if isinstance(routing_key, str) else "",
        )

    def _queue_by_route(self, exchange: str, routing_key: str) -> str:
        """Return the queue with this binding, or else any that this worker consumes and serves."""
        queues = self.queues()
        tests: list[Callable[[Queue], bool]] = [
            lambda queue: is_bound(queue, exchange, routing_key, self._driver_type),
            lambda queue: queue.name == routing_key,
            lambda queue: any(source.name == exchange for source, _ in bindings_of(queue)),
            lambda _: True,
        ]
        found = (queue.name for test in tests for queue in queues if test(queue))
        return str(next(found, routing_key))

    def rank_of(self, message: Any) -> int:
        """Return the rank of a message's priority; see the function :func:`rank_of`."""
        return rank_of((message.properties or {}).get("priority"), self._driver_type)


def _note_queues(channel: Any, tags: dict[str, deque[Any]]) -> None:
    """Note the tags of the consumers of a channel by queue, and write the queue on each message.

    Where kombu routes messages itself, they do not say which consumer they are for, only how they
    were sent. On AMQP messages kombu keeps nothing that is written here.
    """
    consume = channel.basic_consume

    def basic_consume(queue: str, *args: Any, **options: Any) -> Any:
        tags.setdefault(queue, deque(maxlen=_CONSUMER_COUNT)).append(options.get("consumer_tag"))
        callback = options.get("callback")
        if callback is not None:
            options["callback"] = with_queue(queue, callback)
        return consume(queue, *args, **options)

    def with_queue(queue: str, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def deliver(message: Any) -> Any:
            message.throttle_queue = queue
            return callback(message)

        return deliver

    channel.basic_consume = basic_consume


def is_bound(queue: Queue, exchange: str, routing_key: str, driver_type: str) -> bool:
    """Return whether a message with this routing key goes from an exchange to a queue.

    False for exchanges that do not route by key (fanout, headers). "" is the default exchange.
    ``driver_type``: that of the broker's transport, such as "amqp" or "redis".
    """
    if not exchange:
        return bool(queue.name == routing_key)
    return any(
        source.name == exchange and _matches(source.type, key, routing_key, driver_type)
        for source, key in bindings_of(queue)
    )


def is_temporary(queue: Queue, driver_type: str) -> bool:
    """Return whether a broker deletes a queue and its messages with the last consumer.

    Where kombu routes messages itself, a queue that is bound to a fanout exchange exists only while
    it has consumers; other queues stay, even if they are declared with ``auto_delete``.
    """
    if driver_type == "amqp":
        return bool(queue.auto_delete or queue.exclusive)
    kinds = {exchange.type for exchange, _ in bindings_of(queue)}
    return bool(queue.auto_delete and "fanout" in kinds)


def bindings_of(queue: Queue) -> Iterator[tuple[Exchange, str]]:
    """Yield the exchanges that a queue is bound to, each with the key of the binding."""
    if queue.exchange is not None:
        yield queue.exchange, queue.routing_key or ""
    for binding in queue.bindings:
        if binding.exchange is not None:
            yield binding.exchange, binding.routing_key or ""


def _matches(exchange_type: str, key: str, routing_key: str, driver_type: str) -> bool:
    if exchange_type != "topic":
        return exchange_type == "direct" and key == routing_key
    if driver_type == "amqp":
        return re.fullmatch(_amqp_pattern(key), f".{routing_key}") is not None
    return re.match(TopicExchange(None).key_to_pattern(key), routing_key) is not None


def _amqp_pattern(key: str) -> str:
    """Return a regular expression for routing keys with a dot in front.

    In AMQP ``#`` matches any number of words, even none; where kombu routes, one or more.
    """
    wildcards = {"*": r"\.[^.]*", "#": r"(\.[^.]*)*"}
    return "".join(wildcards.get(word) or re.escape(f".{word}") for word in key.split("."))
