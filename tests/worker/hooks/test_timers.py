"""Timers are on time, in kombu's loop and without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous import Hub

from celery_throttle.worker.hooks.timers import Alarm, LoopTimers, ThreadTimers, Timers, make_timers
from tests.servers.server import wait_until

#: Seconds. If kombu's loop overlooks a timer it waits for a second, so ten overlooked timers take
#: longer than this. All timers of a test take some milliseconds if they are on time.
SOON = 3.0

MANY = 100


class Loop:
    """kombu's event loop, with a connection on which nothing arrives."""

    def __init__(self) -> None:
        self.hub: Any = Hub()  # its stubs know little
        self.timers = LoopTimers(self.hub)
        self.timers.attach()
        # A worker always has timers.
        self.hub.call_repeatedly(1.0, lambda: None)

    def run_until(self, true: Callable[[], Any], seconds: float = 10 * SOON) -> float:
        """Run the loop until a condition holds; return the seconds that it took."""
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < seconds
            self.hub.run_once()
        return time.monotonic() - began

    def close(self) -> None:
        self.hub.close()
        self.timers.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=["loop", "thread"])
def timers(request: pytest.FixtureRequest) -> Iterator[Timers]:
    """Timers that run while the test waits, in another thread."""
    if request.param == "thread":
        own = ThreadTimers()
        own.attach()
        yield own
        own.close()
        return
    loop = Loop()
    ends = threading.Event()

    def run() -> None:
        loop.timers.attach()
        while not ends.is_set():
            loop.hub.run_once()

    thread = threading.Thread(target=run)
    thread.start()
    yield loop.timers
    ends.set()
    loop.timers.call_soon(lambda: None)
    thread.join()
    loop.close()


def until(true: Callable[[], Any]) -> float:
    """Wait until a condition holds; return the seconds that it took."""
    began = time.monotonic()
    wait_until(true, "calls were made", 10 * SOON)
    return time.monotonic() - began


@contextmanager
def stopped(timers: Timers) -> Iterator[None]:
    """Let no call be made before all are added."""
    ready = threading.Event()
    timers.call_soon(ready.wait)
    yield
    ready.set()


def test_more_timers_are_due_than_kombu_fires_in_a_round(loop: Loop) -> None:
    """Timers of Celery, for tasks with a countdown, say."""
    made: list[int] = []
    for number in range(MANY):
        loop.hub.call_later(0.01, made.append, number)
    assert loop.run_until(lambda: len(made) == MANY) < SOON


def test_a_timer_is_due_soon_after_ten_others(loop: Loop) -> None:
    made: list[int] = []
    for number in range(MANY):
        loop.hub.call_later(0.01 + number // 10 * 0.005, made.append, number)
    assert loop.run_until(lambda: len(made) == MANY) < SOON


def test_a_timer_calls_soon(loop: Loop) -> None:
    """So does a timer that brings a task which is acknowledged."""
    made: list[int] = []

    def again() -> None:
        made.append(len(made))
        loop.hub.call_later(0, loop.hub.call_soon, again)

    again()
    assert loop.run_until(lambda: len(made) == MANY) < SOON


def test_a_loop_that_has_nothing_to_do_waits(loop: Loop) -> None:
    """It does not poll for due calls."""
    rounds = 0
    loop.timers.call_after(0.5, lambda: None)
    loop.hub.call_later(1.0, lambda: None)

    def count() -> None:
        nonlocal rounds
        rounds += 1

    loop.hub.on_tick.add(count)
    ends = time.monotonic() + 1.0
    loop.run_until(lambda: time.monotonic() > ends)
    assert rounds < MANY


def test_the_loop_is_patched_once(loop: Loop) -> None:
    before = loop.hub.fire_timers
    loop.timers.attach()
    assert loop.hub.fire_timers is before


def test_calls_continue_after_the_loop_was_reset(loop: Loop) -> None:
    """Celery resets it when it has lost its broker, and cancels timers that were set meanwhile."""
    made: list[str] = []
    loop.timers.call_after(1.0, made.append, ("later",))
    loop.timers.call_soon(made.append, "soon")
    loop.hub.reset()
    for _, _, entry in list(loop.hub.timer._queue):
        loop.hub.timer.cancel(entry)
    loop.hub._loop = None
    loop.timers.attach()
    loop.hub.call_repeatedly(1.0, lambda: None)
    assert loop.run_until(lambda: len(made) == 2) < SOON
    assert made == ["soon", "later"]


def test_an_error_of_the_connection_is_raised_for_celery(loop: Loop) -> None:
    """Celery connects again because of it; the other calls are made afterwards."""
    made: list[str] = []

    def fail() -> None:
        raise ConnectionError

    loop.hub.propagate_errors = (ConnectionError,)
    loop.timers.call_soon(fail)
    loop.timers.call_soon(made.append, "next")
    with pytest.raises(ConnectionError):
        loop.run_until(lambda: made)
    loop.hub._loop = None
    assert loop.run_until(lambda: made) < SOON


def test_calls_are_made_in_the_order_of_their_times(timers: Timers) -> None:
    made: list[int] = []
    few = range(5)
    with stopped(timers):
        for number in reversed(few):  # with gaps longer than a call takes on a slow machine
            timers.call_after(number / 2, made.append, (number,))
        time.sleep(2.5)
    until(lambda: len(made) == len(few))
    assert made == list(few)


def test_calls_for_soon_are_made_in_the_order_of_addition(timers: Timers) -> None:
    made: list[int] = []
    for number in range(MANY):
        timers.call_soon(made.append, number)
    until(lambda: len(made) == MANY)
    assert made == list(range(MANY))


def test_an_earlier_call_is_added_while_another_waits(timers: Timers) -> None:
    """Twenty times, from another thread."""
    made: list[int] = []
    timers.call_after(60, made.append, (-1,))
    seconds = 0.0
    for number in range(20):
        timers.call_soon(made.append, number)
        seconds += until(lambda: len(made) == number + 1)  # noqa: B023  # called here only
    assert seconds < SOON


def test_a_call_that_was_cancelled_is_not_made(timers: Timers) -> None:
    made: list[str] = []
    with stopped(timers):
        first = timers.call_after(0.02, made.append, ("first",))
        timers.call_after(0.04, made.append, ("second",))
        timers.cancel(first)
    until(lambda: made)
    assert made == ["second"]
    timers.cancel(first)


def test_an_error_in_one_call_is_logged_and_the_others_are_made(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []

    def fail() -> None:
        raise ValueError

    timers.call_soon(fail)
    timers.call_soon(made.append, "next")
    until(lambda: made)
    assert "Error in timer" in caplog.text


def test_a_call_that_adds_itself_leaves_room_for_others(timers: Timers) -> None:
    made: list[str] = []

    def again() -> None:
        if not made:
            timers.call_soon(again)

    again()
    timers.call_after(0.01, made.append, ("other",))
    until(lambda: made)


def test_the_loop_goes_round_once_more_after_a_call(loop: Loop) -> None:
    """Before it waits: Celery changes the prefetch count between two rounds."""
    made: list[str] = []
    loop.hub.run_once()
    loop.timers.call_soon(made.append, "call")
    began = time.monotonic()
    loop.hub.run_once()
    assert made == ["call"]
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize("kind", ["gevent", "eventlet"])
def test_calls_outlive_a_lost_connection_to_the_broker(kind: str) -> None:
    """Celery 5.5 clears its own timer then, which ends the greenlets of calls that are made."""
    library = pytest.importorskip(kind)
    timer = import_module(f"celery.concurrency.{kind}").Timer()
    pool = SimpleNamespace(is_green=True)
    timers = make_timers(SimpleNamespace(hub=None, pool=pool, timer=timer))
    made: list[str] = []

    def wait() -> None:
        library.sleep(0.1)
        made.append("begun before")

    timers.call_soon(wait)
    library.sleep(0.01)
    alarm = Alarm(timers, lambda: made.append("alarm"))
    alarm.set(0.1)
    timer.clear()
    alarm.set(0.2)
    ends = time.monotonic() + SOON
    while len(made) < 2 and time.monotonic() < ends:
        library.sleep(0.01)
    timers.close()
    assert sorted(made) == ["alarm", "begun before"]
