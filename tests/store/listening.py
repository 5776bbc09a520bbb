"""Wake-ups of a sleeping worker, on any kind of server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Call, script
from celery_throttle.worker.claims.wakeup import WakeupListener
from tests.servers.server import wait_until

CHANNEL = Keys().wakeup_channel("tests")

#: A call that changes nothing.
PING = Call(script("read_definitions"), [Keys().limits], ["", "tests"])


class Listener:
    """Listens as a worker without an event loop does."""

    def __init__(self, store: Store) -> None:
        self._heard = threading.Event()
        self.wakeup = WakeupListener(store, CHANNEL, None, self._heard.set)
        self.wakeup.listen()

    def hears(self, client: redis.Redis) -> None:
        """Return the published messages; it may have to subscribe again first."""
        self._heard.clear()

        def heard() -> bool:
            self.wakeup.listen()
            client.publish(CHANNEL, "")
            return self._heard.wait(0.1)

        wait_until(heard, "a listener that is woken")


@contextmanager
def listening(store: Store) -> Iterator[Listener]:
    listener = Listener(store)
    try:
        yield listener
    finally:
        listener.wakeup.close()
        store.close()
