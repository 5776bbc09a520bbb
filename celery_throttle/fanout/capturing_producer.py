"""What Celery would send for a signature: its own code makes the message, up to the broker.

Celery publishes through a kombu producer that it may be given. The one here keeps the message, so
that routes, signals, events, headers and serializers are Celery's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.compression import get_encoder
from kombu.serialization import dumps

if TYPE_CHECKING:
    from kombu import Producer, Queue


#: What tells kombu how to publish, and nobody what was published.
_OF_PUBLISH = (
    *("retry", "retry_policy", "timeout", "confirm_timeout"),
    *("mandatory", "immediate"),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as a worker would get it, for :func:`celery_throttle.messages.packing.pack`.

    Attributes:
        payload: the body before it was serialized.
        body, content_type, content_encoding, headers, properties: as kombu has them.
        delivery_info: ``exchange`` and ``routing_key``.
        queues: those that the message was to be sent to, as far as Celery says.
    """

    payload: Any
    body: str | bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    delivery_info: dict[str, Any]
    queues: tuple[Queue, ...]


class Keeping:
    """A producer of Celery's that hands each task's message on instead of publishing it.

    Everything else is that producer's: what events are published by, connections, channels.

    Args:
        producer: of kombu.
        keep: called with each message; it may publish it after all by the function it is given.
    """

    def __init__(self, producer: Producer, keep: Callable[[Sent, Callable[[], Any]], Any]) -> None:
        self._producer = producer
        self._keep = keep

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of a producer."""
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Keep a task's message."""
        publish = partial(self._producer.publish, body, **options)
        headers = options.get("headers") or {}
        if "task" not in headers or "id" not in headers:
            return publish()
        return self._keep(message_of(body, options), publish)


def message_of(body: Any, options: Mapping[str, Any]) -> Sent:
    """The message that kombu would make of the arguments of ``Producer.publish``."""
    about = dict(options)
    exchange, routing_key = about.pop("exchange"), about.pop("routing_key")
    serializer, compression = about.pop("serializer"), about.pop("compression")
    headers, declare = dict(about.pop("headers")), about.pop("declare") or ()
    for name in _OF_PUBLISH:
        about.pop(name, None)
    expiration = about.pop("expiration", None)
    if expiration is not None:
        about["expiration"] = str(int(expiration * 1000))
    content_type, content_encoding, data = dumps(body, serializer=serializer)
    if compression:
        # As kombu leaves it when it has decompressed the message for a worker.
        headers["compression"] = get_encoder(compression)[1]  # type: ignore[index]  # wrong in the stubs
    about["priority"] = about.get("priority") or 0
    name = getattr(exchange, "name", exchange)
    return Sent(
        payload=body,
        body=data,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        properties=about,
        delivery_info={"exchange": name or "", "routing_key": routing_key},
        queues=tuple(declare),
    )
