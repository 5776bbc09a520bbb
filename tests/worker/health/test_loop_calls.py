"""Calls of a worker's loop to a slow server: they take at most half of its time.

None blocks the loop for long. In the first tests the time is set.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.errors import StoreError, StoreUnavailableError
from celery_throttle.operations.plan import Blocking
from celery_throttle.store.client import Store
from celery_throttle.store.script import Call, script
from celery_throttle.worker.health import loop_calls
from celery_throttle.worker.health.loop_calls import LateReplyError, LoopCalls, LoopSteps, RoundTrip
from celery_throttle.worker.hooks import timers
from celery_throttle.worker.hooks.timers import ThreadTimers
from celery_throttle.worker.tuning import LOOP_CALL_SECONDS
from tests.faults.proxy import Proxy
from tests.servers.server import Server, wait_until
from tests.store.listening import PING


class Loop:
    """A worker's timers, and calls to its server, each of which takes a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.made: list[tuple[str, float]] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (timers, loop_calls):
            monkeypatch.setattr(module, "time", clock)
        own: Any = SimpleNamespace(
            call_after=self._call_after, cancel=self._cancel, may_block=False
        )
        self.calls = LoopCalls(own)

    def _call_after(self, seconds: float, call: Callable[[], None]) -> Any:
        self.timers.append((self.now + seconds, call))
        return self.timers[-1]

    def _cancel(self, timer: Any) -> None:
        self.timers.remove(timer)

    def caller(self, name: str, takes: float, *, again: bool = False) -> Callable[[], None]:
        """Return a function that calls the server; with ``again`` it does so repeatedly."""

        def call() -> None:
            self.made.append((name, round(self.now - 1_000.0, 6)))
            self.calls.run(self._steps(takes), lambda _: None)
            if again:
                self._call_after(0, lambda: self.calls.run_or_queue(call))

        return call

    def _steps(self, takes: float) -> LoopSteps[None]:
        def read_within(_: float) -> bool:
            self.now += takes
            return True

        store: Any = SimpleNamespace(
            begin=lambda *_: SimpleNamespace(read_within=read_within, server="server"),
            finish=lambda _: [None],
        )
        call: Any = None
        yield RoundTrip(store, [call])

    def run(self, until: float) -> None:
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= 1_000.0 + until:
            timer = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_a_fast_server_is_called_at_once(loop: Loop) -> None:
    for _ in range(3):
        loop.calls.run_or_queue(loop.caller("a", 0.002))
    assert [at for _, at in loop.made] == [0.0, 0.002, 0.004]
    assert not loop.timers


def test_half_of_the_time_is_left_and_callers_alternate(loop: Loop) -> None:
    """Also if a caller comes again before the others have called."""
    for name in "abc":
        loop.calls.run_or_queue(loop.caller(name, 0.05, again=True))
    loop.run(0.85)
    assert loop.made == [(name, number / 10) for number, name in enumerate("abcabcabc")]


def test_a_call_that_does_not_wait_prolongs_the_rest(loop: Loop) -> None:
    loop.calls.run_or_queue(loop.caller("a", 0.05))
    loop.caller("now", 0.03)()
    loop.calls.run_or_queue(loop.caller("b", 0.001))
    loop.run(1)
    assert loop.made == [("a", 0.0), ("now", 0.05), ("b", 0.16)]


def test_a_function_is_queued_once(loop: Loop) -> None:
    loop.caller("a", 0.05)()
    often = loop.caller("b", 0.001)
    for _ in range(3):
        loop.calls.run_or_queue(often)
    loop.run(1)
    assert loop.made == [("a", 0.0), ("b", 0.1)]


def test_after_a_function_that_fails_the_others_run(loop: Loop) -> None:
    def fail() -> None:
        raise RuntimeError

    loop.caller("a", 0.05)()
    loop.calls.run_or_queue(fail)
    loop.calls.run_or_queue(loop.caller("b", 0.001))
    with pytest.raises(RuntimeError):
        loop.run(1)
    loop.run(1)
    assert loop.made == [("a", 0.0), ("b", 0.1)]


def test_the_queue_can_be_cleared(loop: Loop) -> None:
    loop.caller("a", 0.05)()
    loop.calls.run_or_queue(loop.caller("b", 0.001))
    loop.calls.close()
    loop.run(1)
    assert loop.made == [("a", 0.0)]
    assert not loop.timers


class Late:
    """Calls of a loop to a server, which the test stops, and what the loop has received late."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.timeout = 1.0
        self.store = Store(url, timeout=self.timeout)
        self.store.run(PING)
        self.timers = ThreadTimers()
        self.late_servers: dict[Any, str | None] = {}
        self.calls = LoopCalls(self.timers, self.late_servers)
        self.received: list[Any] = []

    def ping(self) -> LoopSteps[str]:
        (reply,) = yield RoundTrip(self.store, [PING])
        if isinstance(reply, StoreError):
            raise reply
        return str(reply)

    def run(self, steps: LoopSteps[Any]) -> Any:
        return self.calls.run(steps, self.received.append)

    def make_late(self, steps: LoopSteps[Any] | None = None) -> float:
        """Make a call to a stopped server; return for how long (s) it has blocked the loop."""
        self.server.signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(LateReplyError):
            self.run(self.ping() if steps is None else steps)
        return time.monotonic() - began

    def deliver(self) -> None:
        """Let the loop receive what a thread has: :class:`ThreadTimers` make no call by itself."""
        wait_until(self.timers._make_calls, "the end of the late call")


@pytest.fixture
def late(own_server: Server) -> Iterator[Late]:
    late = Late(own_server, own_server.url)
    yield late
    own_server.signal(signal.SIGCONT)
    late.calls.close()
    late.store.close()


def test_the_reply_of_a_late_call_is_received_once(late: Late) -> None:
    assert late.make_late() < late.timeout / 2
    assert late.calls.is_late
    late.server.signal(signal.SIGCONT)
    late.deliver()
    assert len(late.received) == 1
    assert not isinstance(late.received[0], Exception)
    assert not late.calls.is_late
    assert not late.store.breaker.is_open
    late.calls.close()
    assert len(late.received) == 1


def test_a_server_that_never_replies_is_lost_after_the_timeout(late: Late) -> None:
    late.make_late()
    assert not late.store.breaker.is_open
    late.deliver()
    (error,) = late.received
    assert isinstance(error, StoreUnavailableError)
    assert late.store.breaker.is_open


def test_the_loop_waits_longer_for_a_server_that_is_far_away(
    own_server: Server, proxy: Proxy
) -> None:
    """But no longer for one that has been near, see the first test of late calls."""
    far = Late(own_server, proxy.url)
    proxy.delay = LOOP_CALL_SECONDS * 0.7  # both ways
    with pytest.raises(LateReplyError):
        far.run(far.ping())
    far.deliver()
    assert far.run(far.ping())
    assert not far.calls.is_late
    far.calls.close()
    far.store.close()


def test_functions_wait_for_the_end_of_a_late_call(late: Late) -> None:
    run: list[bool] = []
    late.make_late()
    late.calls.run_or_queue(lambda: run.append(late.calls.is_late))
    late.server.signal(signal.SIGCONT)
    wait_until(lambda: (late.timers._make_calls(), run)[1], "the queued function")
    assert run == [False]


def test_another_call_does_not_wait_while_one_is_late(late: Late) -> None:
    late.make_late()
    assert late.make_late() < LOOP_CALL_SECONDS
    late.server.signal(signal.SIGCONT)
    wait_until(lambda: (late.timers._make_calls(), len(late.received) == 2)[1], "both replies")


def test_no_call_to_the_same_server_waits_while_one_of_another_shard_is_late(late: Late) -> None:
    other = Late(late.server, late.server.url)
    other.calls = LoopCalls(other.timers, late.late_servers)
    late.make_late()
    assert other.make_late() < LOOP_CALL_SECONDS
    late.server.signal(signal.SIGCONT)
    for one in (late, other):
        one.deliver()
        assert len(one.received) == 1
    assert not late.late_servers
    assert other.run(other.ping())
    other.store.close()


def test_the_loop_does_not_wait_for_a_connection(late: Late) -> None:
    late.store.close()
    assert late.make_late() < LOOP_CALL_SECONDS
    late.server.signal(signal.SIGCONT)
    late.deliver()
    assert len(late.received) == 1


def test_the_rest_of_the_steps_goes_on_in_a_thread(late: Late) -> None:
    threads: list[threading.Thread] = []

    def steps() -> LoopSteps[str]:
        yield from late.ping()
        yield Blocking(lambda: threads.append(threading.current_thread()))
        threads.append(threading.current_thread())
        return "done"

    late.make_late(steps())
    late.server.signal(signal.SIGCONT)
    late.deliver()
    assert late.received == ["done"]
    assert threading.current_thread() not in threads


def test_without_another_thread_the_loop_itself_goes_on(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It blocks then, but what the call has taken or claimed is received."""

    def fail(_: threading.Thread) -> None:
        late.server.signal(signal.SIGCONT)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    late.server.signal(signal.SIGSTOP)
    assert late.run(late.ping())


def test_a_fast_call_that_may_block_is_waited_for(late: Late) -> None:
    def steps() -> LoopSteps[int]:
        number: int = yield Blocking(lambda: 7)
        return number

    assert late.run(steps()) == 7
    assert late.received == []


def test_without_a_connection_a_thread_connects(late: Late) -> None:
    """Also if the server does not have the script."""
    late.store.close()
    with late.server.client() as client:
        client.script_flush()
    call = Call(script("read_definitions"), ["ct:limits"], ["", "api"])

    def steps() -> LoopSteps[Any]:
        return (yield RoundTrip(late.store, [call, call]))

    with suppress(LateReplyError):
        late.received.append(late.run(steps()))
    if not late.received:  # a noisy machine takes longer than the loop waits
        late.deliver()
    assert late.received == [[[None], [None]]]


def test_a_large_call_to_a_stopped_server_is_sent_by_the_thread(late: Late) -> None:
    large = Call(script("read_definitions"), ["ct:limits"], ["", "x" * 20_000_000])

    def steps() -> LoopSteps[Any]:
        (reply,) = yield RoundTrip(late.store, [large])
        return reply

    assert late.make_late(steps()) < late.timeout / 2
    late.server.signal(signal.SIGCONT)
    late.deliver()
    assert late.received == [[None]]


def test_at_the_end_a_late_call_is_received_in_place(late: Late) -> None:
    late.make_late()
    late.server.signal(signal.SIGCONT)
    late.calls.close()
    assert len(late.received) == 1
    late.timers._make_calls()
    assert len(late.received) == 1
