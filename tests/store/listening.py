"""Wake-ups of a sleeping worker, on any kind of server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Call, script
from celery_throttle.worker.claims.wakeup import Channel, WakeupListener
from tests.servers.server import wait_until

CHANNEL = Keys().wakeup_channel("tests")

#: A call that changes nothing.
PING = Call(script("read_definitions"), [Keys().limits], ["", "tests"])


class Listener:
    """Counts the wake-ups of a worker: a message each, and each subscription."""

    def __init__(self, store: Store) -> None:
        self._count = 0
        self.wakeup = WakeupListener([Channel(store, CHANNEL, self._wake_up)])
        self.wakeup.start()

    def _wake_up(self) -> None:
        self._count += 1

    def hears(self, client: redis.Redis) -> None:
        """Return when a published message has arrived; it may have to subscribe first."""
        before = self._count

        def heard() -> bool:
            client.publish(CHANNEL, "")
            return self._count >= before + 2

        wait_until(heard, "a listener that is woken")


@contextmanager
def listening(store: Store) -> Iterator[Listener]:
    listener = Listener(store)
    try:
        yield listener
    finally:
        listener.wakeup.close()
        store.close()
