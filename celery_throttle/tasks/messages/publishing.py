"""Publishes messages that were received before: with the same body, headers and properties.

Law at stake here: *never lost*. RabbitMQ 3 reads the header ``x-death`` of a message, and drops the
message if it expires into a queue where it has expired before. Celery's delayed delivery leads a
message through a queue for each bit of its delay, so a copy with that header would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kombu import Connection, Producer
from kombu.message import Message

#: Properties that a transport adds to a message which it delivers.
TRANSPORT_PROPERTIES = (
    *("delivery_info", "delivery_tag", "body_encoding"),
    *("application_headers", "content_type", "content_encoding"),
)

#: Headers that RabbitMQ adds to a message, or follows when it routes one: with ``CC``, other queues
#: would get the message once more.
_BROKER_HEADERS = ("x-death", "x-delivery-count", "CC")
_BROKER_HEADER_PREFIXES = ("x-first-death-", "x-last-death-")


def remove_broker_headers(headers: dict[str, Any]) -> None:
    """Remove the headers that belong to a broker: its record of one message, not of a copy."""
    for name in list(headers):
        if name in _BROKER_HEADERS or name.startswith(_BROKER_HEADER_PREFIXES):
            del headers[name]


def confirming(connection: Connection) -> Connection:
    """Return a connection that is not established yet, set to wait until the broker has a message.

    Without this, RabbitMQ does not confirm that it has a message.
    """
    options = connection.transport_options or {}
    connection.transport_options = {**options, "confirm_publish": True}
    return connection


def publish(
    producer: Producer,
    message: Message,
    exchange: str,
    routing_key: str,
    more: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Publish a copy of a message, with more headers, and without those of the broker.

    With exchange "" it goes to the queue of that name.

    ``options`` are further arguments of ``Producer.publish``.
    """
    headers: dict[str, Any] = {**(message.headers or {}), **(more or {})}
    remove_broker_headers(headers)
    properties: dict[str, Any] = {
        name: value
        for name, value in (message.properties or {}).items()
        if name not in TRANSPORT_PROPERTIES
    }
    expiration = None
    with suppress(TypeError, ValueError):  # it may be anything: only RabbitMQ reads it
        expiration = int(properties.pop("expiration", None)) / 1000
    producer.publish(
        message.body,
        exchange=exchange,
        routing_key=routing_key,
        headers=headers,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        # The body was decompressed when the message came.
        compression=headers.pop("compression", None),
        expiration=expiration,
        **properties,
        **options,
    )
