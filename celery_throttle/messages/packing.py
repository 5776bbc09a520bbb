"""Messages as they wait in a line: packed bit for bit, and made into messages again.

Nothing of the body is decoded here. Headers and properties are written as JSON, with kombu's own
forms for dates, decimals and bytes; nothing is ever unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from kombu.message import Message
from kombu.utils import json

from celery_throttle.errors import shown
from celery_throttle.worker.claims.claims import Claim

_VERSION = b"1"

#: What this code can read.
VERSIONS = ("1",)
_LENGTH = struct.Struct("<I")

#: Header of a message that a worker has sent back to its queue: whether it had been redelivered.
SENT_BACK = "throttle_sent_back"

#: What is written about a message, and the types it may have.
_ABOUT: dict[str, type | tuple[type, ...]] = {
    "headers": (dict, type(None)),
    "properties": (dict, type(None)),
    "delivery_info": (dict, type(None)),
    "content_type": object,
    "content_encoding": object,
    "text": bool,
    "queue": (str, type(None)),  # only if it is known
}


class UnreadableMessageError(ValueError):
    """A packed message that this code cannot read: of another version, or damaged."""


def pack(
    message: Any,
    more: Mapping[str, Any] | None = None,
    queue: str | None = None,
    *,
    received: bool = False,
) -> bytes:
    """One message, kombu's or what has the same attributes, as bytes.

    Args:
        message: the message.
        more: more headers.
        queue: the queue that it came from, if it does not tell itself.
        received: whether a worker has received it, and Celery has announced that.
    """
    return join(about(message, more, queue, received=received), message.body)


def about(
    message: Any,
    more: Mapping[str, Any] | None = None,
    queue: str | None = None,
    *,
    received: bool = False,
) -> str:
    """All but the body of a message, as JSON."""
    return json.dumps(
        {
            **({} if queue is None else {"queue": queue}),
            "headers": {**message.headers, **more} if more else message.headers,
            "properties": message.properties,
            "delivery_info": message.delivery_info,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "text": isinstance(message.body, str),
            "received": received,
        }
    )


def join(told: str, body: str | bytes) -> bytes:
    """What :func:`about` tells of a message, and its body, as bytes."""
    head = told.encode()
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body or b"")
    return b"".join((_VERSION, _LENGTH.pack(len(head)), head, data))


def version_of(packed: bytes) -> str:
    """The version that a message was packed with, as text."""
    return packed[:1].decode("latin-1")


def _split(packed: bytes) -> tuple[dict[str, Any], bytes]:
    if packed[:1] != _VERSION:
        raise UnreadableMessageError(f"packed message of version {packed[:1]!r}, not {_VERSION!r}")
    start = 1 + _LENGTH.size
    try:
        end = start + _LENGTH.unpack_from(packed, 1)[0]
        found = {"queue": None, **json.loads(packed[start:end].decode())}
        told = {name: found[name] for name in _ABOUT}
        told["redelivered"] = bool(found.get("redelivered"))  # added by `requeue.lua`
        told["received"] = told["redelivered"] or _was_received(found)
    except Exception as error:  # kombu's decoders raise whatever they meet
        raise _damaged(packed) from error
    if not all(isinstance(told[name], types) for name, types in _ABOUT.items()):
        raise _damaged(packed)
    return told, packed[end:]


def _was_received(found: Mapping[str, Any]) -> bool:
    """Whether a worker has received the message of a packed one.

    Version 0.1.0 did not write it down: there, what came from a broker has its tag.
    """
    of_broker = {**(found["delivery_info"] or {}), **(found["properties"] or {})}
    return bool(found.get("received", "delivery_tag" in of_broker))


def _damaged(packed: bytes) -> UnreadableMessageError:
    return UnreadableMessageError(f"packed message {shown(packed)} is damaged")


def headers(packed: bytes) -> dict[str, Any]:
    """Only the headers of a packed message.

    Raises:
        UnreadableMessageError: it cannot be read.
    """
    return _split(packed)[0]["headers"] or {}


def unpack(packed: bytes, accept: Any, claim: Claim) -> ClaimedMessage:
    """The message again, to be acknowledged to its claim instead of the broker.

    Args:
        packed: what :func:`pack` gave.
        accept: content types the worker accepts.
        claim: the claim under which this worker holds the task.

    Raises:
        UnreadableMessageError: it cannot be read.
    """
    told, data = _split(packed)
    try:
        body = data.decode("utf-8", "surrogatepass") if told["text"] else data
    except UnicodeDecodeError as error:
        raise _damaged(packed) from error
    delivery_info = told["delivery_info"]
    if told["redelivered"]:
        delivery_info = {**(delivery_info or {}), "redelivered": True}
    message = ClaimedMessage(
        body=body,  # type: ignore[arg-type]  # bytes as well as text
        content_type=told["content_type"],
        content_encoding=told["content_encoding"],
        delivery_info=delivery_info,
        properties=told["properties"],
        accept=accept,
    )
    # Set afterwards: a header of compression would make the constructor decompress once more.
    message.headers = told["headers"] or {}
    message.claim = claim
    message.throttle_queue = told["queue"]
    message.received = told["received"]
    return message


class ClaimedMessage(Message):
    """A message out of a line. Celery acknowledges it like any other.

    Attributes:
        claim: the claim under which this worker holds the task.
        received: whether a worker has received it before, and Celery has announced that.
    """

    claim: Claim
    throttle_queue: str | None = None
    received: bool

    def ack(self, multiple: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002  # as in kombu
        """Settle the claim."""
        if not self.acknowledged:
            self._state = "ACK"
            self.claim.settle()

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002  # as in kombu
        """Settle the claim, or put the task back at the head of its line."""
        if requeue:
            self.requeue()
        elif not self.acknowledged:
            self._state = "REJECTED"
            self.claim.settle()

    def requeue(self) -> None:
        """Put the task back at the head of its line."""
        if not self.acknowledged:
            self._state = "REQUEUED"
            self.claim.give_back()
