"""Queues as brokers see them: which queue a message goes to, and which queues get deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kombu import Exchange, Queue
from kombu.transport.virtual.exchange import TopicExchange


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
