"""Hears that a line has begun elsewhere, so that an idle worker need not ask to find out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.store.script import pack_command

_ERRORS = (RedisError, OSError)


class Wake:
    """A subscription to this worker's channel.

    In a worker with an event loop the hub watches the connection; elsewhere a thread does.

    Args:
        store: the server.
        channel: this worker's.
        heard: called, from the hub or the thread, when the worker should ask.
    """

    def __init__(self, store: Store, channel: str, heard: Callable[[], None]) -> None:
        self._store = store
        self._channel = channel
        self._heard = heard
        self._connection: Any = None
        self._generation = self._socket = 0
        self._hub: Any = None
        self._stopped = False

    def listen(self, hub: Any | None) -> None:
        """Subscribe, if that is not done already. Without a server, a later call tries again."""
        known = self._connection is not None and self._generation == self._store.generation
        if known or self._stopped or self._store.breaker.is_open:
            return
        self.forget()  # the server has moved, or had not answered: this one may be silent for ever
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
        self._connection, self._hub = connection, hub
        if hub is not None:
            # Kept: a connection that was cut knows its socket no more, and the hub must forget it.
            self._socket = connection._sock.fileno()  # noqa: SLF001  # redis-py does not show it
            hub.add_reader(self._socket, self._read)
        else:
            threading.Thread(
                target=self._watch, args=(connection,), name="throttle-wake", daemon=True
            ).start()

    def _read(self) -> None:
        try:
            while self._connection is not None and self._connection.can_read(0):
                self._connection.read_response()
        except _ERRORS:
            self.forget()
        self._heard()

    def _watch(self, connection: Any) -> None:
        try:
            while connection is self._connection:
                if connection.can_read(1.0):
                    connection.read_response()
                    self._heard()
        except _ERRORS:
            if connection is self._connection:
                self._connection = None
            self._heard()
        finally:
            connection.disconnect()

    def forget(self) -> None:
        """Drop the connection; :meth:`listen` makes a new one."""
        connection, self._connection = self._connection, None
        # A thread that watches the connection closes it itself, within a second.
        if connection is None or self._hub is None:
            return
        self._hub.remove_reader(self._socket)
        connection.disconnect()

    def stop(self) -> None:
        """Listen no more."""
        self._stopped = True
        self.forget()
