"""Packed messages of this version and of the version before."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Message

from celery_throttle.messages import packing
from tests.protocol import Protocol

CLAIM: Any = None

AMQP: dict[str, Any] = {
    "delivery_info": {"delivery_tag": 1, "consumer_tag": "None1", "redelivered": False}
}
REDIS: dict[str, Any] = {"properties": {"delivery_tag": "a5f0"}}
FAN_OUT: dict[str, Any] = {"delivery_info": {"exchange": "", "routing_key": "celery"}}


def packed_by_the_version_before(message: Any) -> bytes:
    """Pack a message without writing down whether it was received."""
    head = packing.pack_head(message)
    return packing.join(head.replace(', "received": false', ""), message.body)


@pytest.mark.parametrize(("message", "received"), [(AMQP, True), (REDIS, True), (FAN_OUT, False)])
def test_messages_that_version_0_1_has_received(message: dict[str, Any], *, received: bool) -> None:
    packed = packed_by_the_version_before(Message("[]", **message))
    assert b"received" not in packed.replace(b"redelivered", b"")
    assert packing.unpack(packed, None, CLAIM).received == received


@pytest.mark.parametrize("pack", [packing.pack, packed_by_the_version_before])
@pytest.mark.parametrize("body", ["[1]", b"\x00{\xff", ""])
def test_a_requeued_message_is_redelivered_if_it_was_delivered(
    lines: Protocol, pack: Any, body: str | bytes
) -> None:
    content: Any = body
    message: Any = Message(content, headers={"task": "t"}, **FAN_OUT)
    lines.park("one", ["api"], message=pack(message), may_run=False)
    seen = []
    for delivered in (False, False, True, True):
        (row,) = lines.claim("w")
        message = packing.unpack(row.message, None, CLAIM)
        assert message.body == body
        assert message.headers == {"task": "t"}
        seen.append((message.delivery_info.get("redelivered"), message.received))
        lines.back("w", "own", row.token if delivered else -row.token)
    assert seen == [(None, False)] * 3 + [(True, True)]


@pytest.mark.parametrize("message", [b"", b"1", b"1\x02\x00\x00\x00[]", b"9\x02\x00\x00\x00{}"])
def test_an_unreadable_message_is_requeued_unchanged(lines: Protocol, message: bytes) -> None:
    lines.park("one", ["api"], message=message, may_run=False)
    for _ in range(2):
        (row,) = lines.claim("w")
        assert row.message == message
        lines.back("w", "own", row.token)
