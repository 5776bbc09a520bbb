"""Tasks of a real worker in a line, on any kind of server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import redis

from celery_throttle import Limiter
from tests.apps import stores
from tests.servers.server import wait_until


class Queue:
    """The producer, and the counts of its tasks.

    Args:
        broker: the worker's.
        url: of the limits. The worker is told it, unless its broker tells it.
        notes: of the server where the worker notes what happens.
        transport_options: of the broker.
    """

    def __init__(
        self,
        broker: str,
        url: str,
        notes: str,
        *,
        told: bool = True,
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._broker = broker
        self._limiter = Limiter(url, stores.LIMITS)
        self._notes = redis.Redis.from_url(notes)
        self._sent = 0
        self.env = {"NOTES_URL": notes, "TRANSPORT_OPTIONS": json.dumps(transport_options or {})}
        if told:
            self.env["THROTTLE_URL"] = url
        stores.app.conf.update(broker_url=broker, broker_transport_options=transport_options or {})

    def noted(self, kind: str) -> list[int]:
        rows: list[bytes] = self._notes.lrange("stores-notes", 0, -1)  # type: ignore[assignment]  # not async
        return sorted(int(row.split()[1]) for row in rows if row.startswith(kind.encode()))

    def tasks_wait(self, count: int) -> None:
        """Send tasks until a number of them wait in their lines."""
        self._limiter["turn"].pause(3600)
        turn: Any = stores.turn
        with stores.app.connection_for_write() as link:
            for number in range(self._sent, self._sent + count):
                turn.apply_async((number,), connection=link)
        self._sent += count
        self._wait_for("waits", count)

    def let_go(self) -> None:
        self._limiter["turn"].reset()

    def all_ran(self) -> bool:
        return len(self.noted("runs")) >= self._sent

    def tasks_run(self) -> None:
        """Whether all waiting tasks ran once."""
        self.let_go()
        self._wait_for("runs", self._sent)
        assert self.noted("runs") == list(range(self._sent))

    def _wait_for(self, kind: str, count: int) -> None:
        wait_until(lambda: len(self.noted(kind)) >= count, f"{count} tasks of which one {kind}")
