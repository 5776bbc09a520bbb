"""What brokers do with queues: which of them a message goes to, and which do not stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kombu.transport.virtual.exchange import TopicExchange

if TYPE_CHECKING:
    from kombu import Exchange, Queue


def is_bound(queue: Queue, exchange: str, routing_key: str, driver_type: str) -> bool:
    """Whether a message with this routing key goes from an exchange to a queue.

    Of exchanges that do not go by the key (fanout, headers) it is False.

    Args:
        queue: with its bindings.
        exchange: of the message; the default exchange is "".
        routing_key: likewise.
        driver_type: of the broker's transport.
    """
    if not exchange:
        return bool(queue.name == routing_key)
    return any(
        bound.name == exchange and _is_meant(bound.type, key, routing_key, driver_type)
        for bound, key in bindings_of(queue)
    )


def is_temporary(queue: Queue, driver_type: str) -> bool:
    """Whether a broker deletes a queue, and the messages in it, with its last consumer.

    Where kombu routes messages itself, queues that are bound to a fanout exchange hold nothing but
    what their consumers have; others stay, even if they are declared to be deleted.
    """
    if driver_type == "amqp":
        return bool(queue.auto_delete or queue.exclusive)
    kinds = {exchange.type for exchange, _ in bindings_of(queue)}
    return bool(queue.auto_delete and "fanout" in kinds)


def bindings_of(queue: Queue) -> Iterator[tuple[Exchange, str]]:
    """The exchanges that a queue is bound to, each with the key of the binding."""
    if queue.exchange is not None:
        yield queue.exchange, queue.routing_key or ""
    for binding in queue.bindings:
        if binding.exchange is not None:
            yield binding.exchange, binding.routing_key or ""


def _is_meant(exchange_type: str, key: str, routing_key: str, driver_type: str) -> bool:
    if exchange_type != "topic":
        return exchange_type == "direct" and key == routing_key
    if driver_type == "amqp":
        return re.fullmatch(_amqp_pattern(key), f".{routing_key}") is not None
    return re.match(TopicExchange(None).key_to_pattern(key), routing_key) is not None


def _amqp_pattern(key: str) -> str:
    """A pattern for routing keys with a dot in front.

    In AMQP ``#`` stands for any number of words, even none; where kombu routes, for one or more.
    """
    wildcards = {"*": r"\.[^.]*", "#": r"(\.[^.]*)*"}
    return "".join(wildcards.get(word) or re.escape(f".{word}") for word in key.split("."))
