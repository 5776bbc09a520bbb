"""Leases of slots: renewed as long as somebody can release the slot, also after a failure."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator

import pytest

from celery_throttle import Limiter
from tests.faults.proxy import Proxy
from tests.servers.server import Server, wait_until

LIMITS = {"pool": "1 at once"}


def is_free(limiter: Limiter) -> bool:
    return limiter["pool"].peek().allowed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of asyncio
def test_a_slot_whose_coroutine_ended_with_its_loop_is_free_after_the_lease(
    limiter: Limiter,
) -> None:
    async def hold() -> None:
        async with limiter["pool"].slot(lease=1):
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    task = loop.create_task(hold())
    while not limiter.lease_renewer._held:
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(limiter.store.aclose())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # of asyncio
    del task
    gc.collect()
    wait_until(lambda: is_free(limiter), "a free slot", 5)


def test_a_slot_that_nothing_refers_to_is_free_after_the_lease(limiter: Limiter) -> None:
    def values() -> Iterator[int]:
        slot = limiter["pool"].slot(lease=1)
        slot.__enter__()
        yield 1

    assert next(values()) == 1
    gc.collect()
    wait_until(lambda: is_free(limiter), "a free slot", 5)


def test_a_thread_that_cannot_start_does_not_keep_others_from_starting(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"), limiter["pool"].slot(lease=1):
            pass
    with limiter["pool"].slot(lease=1):
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert not is_free(limiter)
            time.sleep(0.05)


def test_a_slot_outlasts_an_outage_that_is_shorter_than_its_lease(
    own_server: Server, proxy: Proxy
) -> None:
    limiter, other = Limiter(proxy.url, LIMITS, timeout=0.2), Limiter(own_server.url, LIMITS)
    with limiter["pool"].slot(lease=6):
        end = time.monotonic() + 7
        proxy.refuse()
        time.sleep(4.3)  # two of the three renewals of a lease fail
        proxy.accept()
        while time.monotonic() < end:
            assert not is_free(other)
            time.sleep(0.05)
    limiter.store.close()
    other.store.close()
