"""Calls that were sent, so that a caller can do something else until their replies come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from celery_throttle.store.connection import Connection
from celery_throttle.store.script import Call


@dataclass(slots=True, eq=False)
class PendingCalls:
    """Calls whose replies have not all been read."""

    calls: Sequence[Call]
    #: The connection by which they were sent; None if they were not.
    connection: Connection | None
    replies: list[Any] = field(default_factory=list)  #: those that have been read, in order

    @property
    def server(self) -> str | None:
        """The address of the server that they were sent to; None if they were not sent."""
        return None if self.connection is None else str(self.connection.address)

    def read_within(self, seconds: float) -> bool:
        """Read replies for some seconds; return whether all have come and none is an error.

        Otherwise :meth:`.Store.finish` does the rest, which may block.
        """
        connection, replies = self.connection, self.replies
        if connection is None:
            return False
        try:
            while len(replies) < len(self.calls):
                reply = connection.read_within(seconds)
                if reply is False:
                    return False
                replies.append(reply)
        except (OSError, hiredis.HiredisError):  # so does `finish`
            return False
        return not any(isinstance(reply, hiredis.ReplyError) for reply in replies)
