"""Wake-ups: the server tells an idle worker that a line may be due.

It has begun elsewhere, its limit has changed, or a slot was released.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from redis.exceptions import RedisError

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.store.script import pack_command
from celery_throttle.worker import tuning


class WakeupListener:
    """Listens on channels of this worker, in a thread, from :meth:`start` to :meth:`close`.

    A worker has one channel for each shard on the server. It subscribes again if the server is
    lost, or another one is in charge. Each subscription counts as a wake-up, since messages before
    it were lost.

    Args:
        store: the server.
        on_wakeup: by channel, called from the thread when the worker should poll.
    """

    def __init__(self, store: Store, on_wakeup: Mapping[str, Callable[[], None]]) -> None:
        self._store = store
        self._on_wakeup = on_wakeup
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the thread, if it does not run. Not earlier: the pool forks before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="throttle-wake", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, within a second."""
        self._is_closed = True

    def _run(self) -> None:
        while not self._is_closed:
            if not self._store.breaker.is_open:
                with suppress(StoreError, RedisError, OSError):
                    self._listen()
            time.sleep(tuning.RESUBSCRIBE_SECONDS)

    def _listen(self) -> None:
        """Subscribe, and listen until the connection is cut or may stay silent."""
        generation = self._store.generation
        connection = self._store.connection()
        try:
            command = pack_command("SUBSCRIBE", *self._on_wakeup)
            connection.send_packed_command([command], check_health=False)
            while not self._is_closed and generation == self._store.generation:
                if connection.can_read(1.0):
                    _, channel, _ = connection.read_response()
                    self._on_wakeup[channel.decode()]()
        finally:
            connection.disconnect()
