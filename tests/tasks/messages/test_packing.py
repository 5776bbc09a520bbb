"""Packed messages: what is packed is what comes out, and what cannot be read stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Message

from celery_throttle.operations.waiting import ClaimStatus
from celery_throttle.tasks.messages import packing
from tests.protocol import Protocol

CLAIM: Any = None

FAN_OUT: dict[str, Any] = {"delivery_info": {"exchange": "", "routing_key": "celery"}}


@pytest.mark.parametrize("body", ["[1]", b"\x00{\xff", ""])
def test_a_requeued_message_is_redelivered_if_it_was_delivered(
    lines: Protocol, body: str | bytes
) -> None:
    content: Any = body
    message: Any = Message(content, headers={"task": "t"}, **FAN_OUT)
    lines.park("one", ["api"], message=packing.pack(message), may_run=False)
    seen = []
    for status in (ClaimStatus.HELD, ClaimStatus.HELD, ClaimStatus.DELIVERED, ClaimStatus.STARTED):
        (row,) = lines.claim("w")
        message = packing.unpack(row.message, None, CLAIM)
        assert message.body == body
        assert message.headers == {"task": "t"}
        seen.append((message.delivery_info.get("redelivered"), message.received))
        lines.back("w", "own", row.token, status=status)
    assert seen == [(None, False)] * 3 + [(True, True)]


@pytest.mark.parametrize("message", [b"", b"1", b"1\x02\x00\x00\x00[]", b"9\x02\x00\x00\x00{}"])
def test_an_unreadable_message_is_requeued_unchanged(lines: Protocol, message: bytes) -> None:
    lines.park("one", ["api"], message=message, may_run=False)
    for _ in range(2):
        (row,) = lines.claim("w")
        assert row.message == message
        lines.back("w", "own", row.token)
