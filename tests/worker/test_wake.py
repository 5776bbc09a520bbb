"""An idle worker is woken, with an event loop and without, and when its server was away."""

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
from celery_throttle.worker.claims.wakeup import Wake
from tests.servers import Server, wait_until

CHANNEL = Keys().wakeup_channel("tests")


@pytest.fixture
def hub() -> Iterator[Any]:
    hub: Any = Hub()
    yield hub
    hub.close()


def turn(hub: Any) -> None:
    """One turn of a worker's loop; it waits for a tenth of a second at most."""
    hub.call_later(0.1, lambda: None)
    next(hub.loop)


def turn_until(hub: Any, holds: Callable[[], Any], what: str) -> None:
    def turned() -> Any:
        turn(hub)
        return holds()

    wait_until(turned, what)


@pytest.mark.parametrize("reset", [False, True])
def test_a_loop_forgets_a_server_that_went_away(
    own_server: Server, hub: Any, *, reset: bool
) -> None:
    heard: list[float] = []
    wake = Wake(Store(own_server.url), CHANNEL, lambda: heard.append(time.monotonic()))
    wake.listen(hub)
    (fd,) = hub.readers
    copy = os.dup(fd)  # as a process of the pool has it, that was started later
    try:
        with own_server.client() as client:
            client.publish(CHANNEL, "")
        turn_until(hub, lambda: heard, "a message")
        if reset:  # what the server has not read when it dies makes its end an error
            own_server.signal(signal.SIGSTOP)
            wake._connection.send_command("PING")
        own_server.stop()
        turn_until(hub, lambda: not hub.readers, "a loop that watches nothing")
        heard.clear()
        for _ in range(3):
            turn(hub)
        assert not heard
        own_server.start()
        wake.listen(hub)
        with own_server.client() as client:
            client.publish(CHANNEL, "")
        turn_until(hub, lambda: heard, "a message")
    finally:
        os.close(copy)
        wake.stop()
    assert not hub.readers
