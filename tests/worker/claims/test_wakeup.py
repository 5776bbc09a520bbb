"""An idle worker is woken up, also after its server was lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu.asynchronous import Hub

from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.worker.claims.wakeup import WakeupListener
from tests.servers.server import Server, wait_until

CHANNEL = Keys().wakeup_channel("tests")


@pytest.fixture
def hub() -> Iterator[Any]:
    hub: Any = Hub()
    yield hub
    hub.close()


def run_round(hub: Any) -> None:
    """Run one round of a worker's loop, which waits for a tenth of a second at most."""
    hub.call_later(0.1, lambda: None)
    next(hub.loop)


def run_until(hub: Any, holds: Callable[[], Any], what: str) -> None:
    def ran() -> Any:
        run_round(hub)
        return holds()

    wait_until(ran, what)


@pytest.mark.parametrize("reset", [False, True])
def test_a_loop_forgets_the_connection_to_a_lost_server(
    own_server: Server, hub: Any, *, reset: bool
) -> None:
    wakeups: list[float] = []
    store = Store(own_server.url)
    wakeup = WakeupListener(store, CHANNEL, hub, lambda: wakeups.append(time.monotonic()))
    wakeup.listen()
    (fd,) = hub.readers
    copy = os.dup(fd)  # as a pool process has it that was started later
    try:
        with own_server.client() as client:
            client.publish(CHANNEL, "")
        run_until(hub, lambda: wakeups, "a message")
        if reset:  # a server that dies with unread data resets the connection
            own_server.signal(signal.SIGSTOP)
            wakeup._connection.send_command("PING")
        own_server.stop()
        run_until(hub, lambda: not hub.readers, "a loop that watches nothing")
        wakeups.clear()
        for _ in range(3):
            run_round(hub)
        assert not wakeups
        own_server.start()
        wakeup.listen()
        with own_server.client() as client:
            client.publish(CHANNEL, "")
        run_until(hub, lambda: wakeups, "a message")
    finally:
        os.close(copy)
        wakeup.close()
    assert not hub.readers
