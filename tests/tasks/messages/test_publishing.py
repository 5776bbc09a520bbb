"""Copies of messages, on kombu's broker in memory."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection, Queue
from kombu.message import Message

from celery_throttle.tasks.messages.publishing import publish


@pytest.mark.parametrize(
    ("written", "expected"), [("1500", "1500"), (1500, "1500"), ("soon", None), ([1], None)]
)
def test_a_copy_expires_like_its_message_if_that_says_when(written: Any, expected: Any) -> None:
    """Another program may have sent anything. Celery reads no expiration, so the task runs."""
    message = Message(body="[]", content_type="application/json", content_encoding="utf-8")
    message.properties = {"expiration": written, "correlation_id": "1"}
    with Connection("memory://") as connection:
        channel = connection.channel()
        queue = Queue("copies", channel=channel)
        queue.declare()
        publish(connection.Producer(channel), message, "", "copies")
        copy: Any = queue.get()
        queue.delete()
    assert copy.properties.get("expiration") == expected
    assert copy.properties["correlation_id"] == "1"
