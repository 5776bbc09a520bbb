"""Leases of slots: renewed as long as somebody can release the slot, also after a failure."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_throttle import Limiter
from celery_throttle.limiter.lease_renewer import LeaseRenewer
from tests.faults.proxy import Proxy
from tests.limiter.test_forks import fork
from tests.servers.server import Server, wait_until

LIMITS = {"pool": "1 at once"}


def is_free(limiter: Limiter) -> bool:
    return limiter["pool"].peek().allowed


@pytest.mark.filterwarnings("error")
def test_a_slot_whose_coroutine_ended_with_its_loop_is_free_after_the_lease(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", errors.append)

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
    assert [str(error.exc_value) for error in errors] == []
    wait_until(lambda: is_free(limiter), "a free slot", 5)


def test_an_import_registers_nothing_for_forks() -> None:
    code = (
        "import os; calls = []; os.register_at_fork = lambda **kwargs: calls.append(kwargs);"
        "import celery_throttle.limiter.lease_renewer as ours;"
        "assert not [one for one in calls if ours._reset_all in one.values()]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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


def test_the_first_slots_of_two_threads_after_a_fork_are_both_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread finds that it is in a new process, and then the other one adds its slot."""
    renewed, owners = set[str](), [asyncio.Event(), asyncio.Event()]
    renewer = LeaseRenewer(lambda holder, *_: renewed.add(holder))
    renewer.add(owners[0], "of the parent", (), 1)

    def add(number: int) -> None:
        renewer.add(owners[number], str(number), (), 1)

    def add_both() -> None:
        late, added = threading.Thread(target=add, args=(1,)), threading.Event()
        getpid = os.getpid

        def getpid_late() -> int:
            if threading.current_thread() is late:
                added.wait()
            return getpid()

        monkeypatch.setattr(os, "getpid", getpid_late)
        late.start()
        add(0)
        added.set()
        late.join()
        wait_until(lambda: renewed == {"0", "1"}, "two renewals", 5)

    assert fork(add_both) == 0


@pytest.mark.thorough
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
