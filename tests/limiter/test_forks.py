"""A fork inside a with: slots and units stay with the parent, whatever becomes of the child."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import pytest

from celery_throttle import Limiter

LIMITS = {"pool": "1 at once", "tokens": "1000/d burst 100"}


class ChildError(Exception):
    """Ends what the child has inherited."""


def fork(child: Callable[[], None]) -> int:
    """Return the exit code of a child, which is 1 if it fails."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("error", [None, ChildError()], ids=["ends", "fails"])
def test_a_child_leaves_the_slot_to_its_parent(limiter: Limiter, error: ChildError | None) -> None:
    slot = limiter["pool"].slot()
    with slot:
        assert fork(lambda: slot.__exit__(type(error), error, None)) == 0
        assert not limiter["pool"].peek().allowed
    assert limiter["pool"].peek().allowed


def test_a_child_leaves_a_slot_of_asyncio_to_its_parent(limiter: Limiter) -> None:
    slot = limiter["pool"].slot()
    with slot:
        assert fork(lambda: asyncio.run(slot.__aexit__(None, None, None))) == 0
        assert not limiter["pool"].peek().allowed


def test_a_child_takes_a_slot_of_its_own_after_that(limiter: Limiter) -> None:
    limiter["pool"].define("2 at once")
    slot = limiter["pool"].slot()

    def take() -> None:
        slot.__exit__(None, None, None)
        with slot:
            assert not limiter["pool"].peek().allowed

    with slot:
        assert fork(take) == 0
        assert limiter["pool"].peek().allowed


@pytest.mark.parametrize("error", [None, ChildError()], ids=["ends", "fails"])
def test_a_child_leaves_a_reservation_to_its_parent(
    limiter: Limiter, error: ChildError | None, caplog: pytest.LogCaptureFixture
) -> None:
    reservation = limiter["tokens"].reserve(50)

    def end() -> None:
        reservation.__exit__(type(error), error, None)
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []

    with reservation:
        assert fork(end) == 0
        assert limiter["tokens"].peek(0).remaining == 50
        reservation.settle(20)
    assert limiter["tokens"].peek(0).remaining == 80
