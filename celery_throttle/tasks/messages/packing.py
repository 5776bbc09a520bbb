"""Messages as they wait in a line: packed bit for bit, and made into messages again.

A packed message is one byte for the version, the length of the head (4 bytes, little endian), the
head and the body. The head is JSON, with kombu's own forms for dates, decimals and bytes. The body
is never decoded, and nothing is ever unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Protocol

from kombu.message import Message
from kombu.utils import json

from celery_throttle.errors import shown

_VERSION = b"1"

#: Versions of packed messages that this code can read.
VERSIONS = ("1",)
_LENGTH = struct.Struct("<I")

#: Header of a message that a worker has sent back to its queue: whether it had been redelivered.
REPUBLISHED_HEADER = "throttle_sent_back"

#: Fields of the head, and the types that each may have.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "headers": (dict, type(None)),
    "properties": (dict, type(None)),
    "delivery_info": (dict, type(None)),
    "content_type": object,
    "content_encoding": object,
    "text": bool,
    "queue": (str, type(None)),  # only if it is known
    "received_by": str,
}


class UnreadableMessageError(ValueError):
    """A packed message that this code cannot read: of another version, or damaged."""


class MessageClaim(Protocol):
    """The claim that a message out of a line is acknowledged to."""

    def settle(self) -> None:
        """Record that the message is acknowledged, which ends the claim."""

    def requeue(self) -> None:
        """Put the task back at the head of its line."""


def pack(
    message: Any,
    more: Mapping[str, Any] | None = None,
    queue: str | None = None,
    *,
    received_by: str = "",
) -> bytes:
    """Pack a message of kombu's, or any object with the same attributes, and more headers.

    ``queue``: that of the message, if its ``delivery_info`` does not say so;
    ``received_by``: the name of the worker that has received the message, and whose Celery has
    announced it; empty if none has.
    """
    return join(pack_head(message, more, queue, received_by=received_by), message.body)


def pack_head(
    message: Any,
    more: Mapping[str, Any] | None = None,
    queue: str | None = None,
    *,
    received_by: str = "",
) -> str:
    """Return all of a message but its body, as JSON. The arguments are those of :func:`pack`."""
    return json.dumps(
        {
            **({} if queue is None else {"queue": queue}),
            "headers": {**message.headers, **more} if more else message.headers,
            "properties": message.properties,
            "delivery_info": message.delivery_info,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "text": isinstance(message.body, str),
            "received_by": received_by,
        }
    )


def join(head: str, body: str | bytes) -> bytes:
    """Make a packed message of a head, as :func:`pack_head` returns it, and a body."""
    packed_head = head.encode()
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body or b"")
    return b"".join((_VERSION, _LENGTH.pack(len(packed_head)), packed_head, data))


def version_of(packed: bytes) -> str:
    """Return the version that a message was packed with, as text."""
    return packed[:1].decode("latin-1")


def _split(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the fields of the head, with ``redelivered`` and ``received``, and the body."""
    if packed[:1] != _VERSION:
        raise UnreadableMessageError(f"packed message of version {packed[:1]!r}, not {_VERSION!r}")
    start = 1 + _LENGTH.size
    try:
        end = start + _LENGTH.unpack_from(packed, 1)[0]
        head = {"queue": None, **json.loads(packed[start:end].decode())}
        fields = {name: head[name] for name in _FIELDS}
        fields["redelivered"] = bool(head.get("redelivered"))  # added by `requeue.lua`
        fields["received"] = fields["redelivered"] or bool(fields["received_by"])
    except Exception as error:  # kombu's decoders raise errors of any type
        raise _damaged(packed) from error
    if not all(isinstance(fields[name], types) for name, types in _FIELDS.items()):
        raise _damaged(packed)
    return fields, packed[end:]


def _damaged(packed: bytes) -> UnreadableMessageError:
    return UnreadableMessageError(f"packed message {shown(packed)} is damaged")


def headers(packed: bytes) -> dict[str, Any]:
    """Return the headers of a packed message.

    Raises:
        UnreadableMessageError: it cannot be read.
    """
    return _split(packed)[0]["headers"] or {}


def unpack(packed: bytes, accept: Any, claim: MessageClaim | None = None) -> ClaimedMessage:
    """Make a message again, which is acknowledged to its claim instead of the broker.

    ``accept``: the content types that the worker accepts. Without a ``claim`` the message cannot be
    acknowledged.

    Raises:
        UnreadableMessageError: the message cannot be read.
    """
    fields, data = _split(packed)
    try:
        body = data.decode("utf-8", "surrogatepass") if fields["text"] else data
    except UnicodeDecodeError as error:
        raise _damaged(packed) from error
    delivery_info = fields["delivery_info"]
    if fields["redelivered"]:
        delivery_info = {**(delivery_info or {}), "redelivered": True}
    message = ClaimedMessage(
        body=body,  # type: ignore[arg-type]  # bytes as well as text
        content_type=fields["content_type"],
        content_encoding=fields["content_encoding"],
        delivery_info=delivery_info,
        properties=fields["properties"],
        accept=accept,
    )
    # Set afterwards: a compression header would make the constructor decompress the body again.
    message.headers = fields["headers"] or {}
    if claim is not None:
        message.claim = claim
    message.throttle_queue = fields["queue"]
    message.received = fields["received"]
    message.received_by = fields["received_by"]
    return message


def task_fields(message: Message) -> Mapping[str, Any]:
    """Return the fields of a task's message, in either version of Celery's protocol.

    Raises:
        ContentDisallowed, DecodeError: the fields are in the body, which cannot be read.
    """
    fields: Mapping[str, Any] = message.headers if "task" in message.headers else message.payload
    return fields


def identity(task_id: str, fields: Mapping[str, Any]) -> str:
    """Return what tells a redelivered message from a retry or a replacement of its task."""
    retries, nesting = fields.get("retries") or 0, fields.get("replaced_task_nesting") or 0
    return f"{task_id} {retries} {nesting}"


def is_claimed(message: Any) -> bool:
    """Return whether a message came out of a line, under a claim, and not from the broker."""
    return hasattr(message, "claim")


class ClaimedMessage(Message):
    """A message out of a line. Celery acknowledges it like any other."""

    claim: MessageClaim
    throttle_queue: str | None = None  #: the queue that it came from, if that is known
    received: bool  #: whether a worker has received it before, and Celery has announced that
    received_by: str  #: the name of that worker, if it is known; else empty

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
            self.claim.requeue()
