"""Wake-ups: the server tells an idle worker that a line has begun elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.store.script import pack_command

_ERRORS = (RedisError, OSError)


class WakeupListener:
    """A subscription to the channel of this worker.

    With an event loop, the hub watches the connection; without one, a thread does.

    Args:
        store: the server.
        channel: the worker's channel.
        hub: kombu's event loop, if the worker has one.
        on_wakeup: called, from the hub or the thread, when the worker should poll.
    """

    def __init__(
        self, store: Store, channel: str, hub: Any | None, on_wakeup: Callable[[], None]
    ) -> None:
        self._store = store
        self._channel = channel
        self._hub = hub
        self._on_wakeup = on_wakeup
        self._connection: Any = None
        self._generation = self._socket = 0
        self._is_closed = False

    def listen(self) -> None:
        """Subscribe, unless that is done already. If the server is lost, a later call retries."""
        subscribed = self._connection is not None and self._generation == self._store.generation
        if subscribed or self._is_closed or self._store.breaker.is_open:
            return
        self._disconnect()  # the server has moved, so this connection may stay silent
        try:
            connection = self._store.connection()
        except StoreError:
            return
        self._generation = self._store.generation
        try:
            connection.send_packed_command(
                [pack_command("SUBSCRIBE", self._channel)], check_health=False
            )
            connection.read_response()
        except _ERRORS:
            connection.disconnect()
            return
        self._connection = connection
        if self._hub is not None:
            # Kept, as a cut connection does not know its socket, and the hub must forget that.
            self._socket = connection._sock.fileno()  # noqa: SLF001  # redis-py does not show it
            self._hub.add_reader(self._socket, self._read)
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
        if connection is None or self._hub is None:
            return
        self._hub.remove_reader(self._socket)
        connection.disconnect()

    def _read(self) -> None:
        try:
            while self._connection is not None and self._connection.can_read(0):
                self._connection.read_response()
        except _ERRORS:
            self._disconnect()
        self._on_wakeup()

    def _watch(self, connection: Any) -> None:
        try:
            while connection is self._connection:
                if connection.can_read(1.0):
                    connection.read_response()
                    self._on_wakeup()
        except _ERRORS:
            if connection is self._connection:
                self._connection = None
            self._on_wakeup()
        finally:
            connection.disconnect()
