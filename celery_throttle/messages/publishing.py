"""Publishes messages that were received before: with the same body, headers and properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu import Connection, Producer
from kombu.message import Message

#: Properties that a transport adds to a message which it delivers.
TRANSPORT_PROPERTIES = (
    *("delivery_info", "delivery_tag", "body_encoding"),
    *("application_headers", "content_type", "content_encoding"),
)


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
    """Publish a message, with more headers. With exchange "" it goes to the queue of that name.

    ``options`` are further arguments of ``Producer.publish``.
    """
    headers: dict[str, Any] = {**(message.headers or {}), **(more or {})}
    properties: dict[str, Any] = {
        name: value
        for name, value in (message.properties or {}).items()
        if name not in TRANSPORT_PROPERTIES
    }
    expiration = properties.pop("expiration", None)
    producer.publish(
        message.body,
        exchange=exchange,
        routing_key=routing_key,
        headers=headers,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        # The body was decompressed when the message came.
        compression=headers.pop("compression", None),
        expiration=None if expiration is None else int(expiration) / 1000,
        **properties,
        **options,
    )
