"""Wake-ups: the server tells an idle worker that a line may be due.

It has begun elsewhere, its limit has changed, or a slot was released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.store.script import pack_command

_ERRORS = (RedisError, OSError)


@dataclass(eq=False, repr=False)
class WakeupListener:
    """A subscription to the channel of this worker.

    With an event loop, kombu's ``hub`` watches the connection; without one, a thread does.
    """

    store: Store
    channel: str
    hub: Any | None
    #: Called, from the hub or the thread, when the worker should poll.
    on_wakeup: Callable[[], None]

    def __post_init__(self) -> None:
        self._connection: Any = None
        self._generation = self._socket = 0
        self._is_closed = False

    def listen(self) -> None:
        """Subscribe, unless that is done already. If the server is lost, a later call retries."""
        subscribed = self._connection is not None and self._generation == self.store.generation
        if subscribed or self._is_closed or self.store.breaker.is_open:
            return
        self._disconnect()  # the server has moved, so this connection may stay silent
        try:
            connection = self.store.connection()
        except StoreError:
            return
        self._generation = self.store.generation
        try:
            connection.send_packed_command(
                [pack_command("SUBSCRIBE", self.channel)], check_health=False
            )
            connection.read_response()
        except _ERRORS:
            connection.disconnect()
            return
        self._connection = connection
        if self.hub is not None:
            # Kept, as a cut connection does not know its socket, and the hub must forget that.
            self._socket = connection._sock.fileno()  # noqa: SLF001  # redis-py does not show it
            self.hub.add_reader(self._socket, self._read)
        else:
            threading.Thread(
                target=self._watch, args=(connection,), name="throttle-wake", daemon=True
            ).start()

    def close(self) -> None:
        """End the subscription for good."""
        self._is_closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        # A thread that watches the connection closes it by itself, within a second.
        if connection is None or self.hub is None:
            return
        self.hub.remove_reader(self._socket)
        connection.disconnect()

    def _read(self) -> None:
        try:
            while self._connection is not None and self._connection.can_read(0):
                self._connection.read_response()
        except _ERRORS:
            self._disconnect()
        self.on_wakeup()

    def _watch(self, connection: Any) -> None:
        try:
            while connection is self._connection:
                if connection.can_read(1.0):
                    connection.read_response()
                    self.on_wakeup()
        except _ERRORS:
            if connection is self._connection:
                self._connection = None
            self.on_wakeup()
        finally:
            connection.disconnect()
