"""A slow server takes at most half of a worker's time. The tests set the time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.worker.health import backoff
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.hooks import timers


class Loop:
    """A worker's timers, and calls to its server, each of which takes a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.calls: list[tuple[str, float]] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (timers, backoff):
            monkeypatch.setattr(module, "time", clock)
        own: Any = SimpleNamespace(call_after=self._call_after, cancel=self._cancel)
        self.backoff = Backoff(own)

    def _call_after(self, seconds: float, call: Callable[[], None]) -> Any:
        self.timers.append((self.now + seconds, call))
        return self.timers[-1]

    def _cancel(self, timer: Any) -> None:
        self.timers.remove(timer)

    def caller(self, name: str, takes: float, *, again: bool = False) -> Callable[[], None]:
        """Return a function that calls the server; with ``again`` it does so repeatedly."""

        def call() -> None:
            began = self.now
            self.calls.append((name, round(began - 1_000.0, 6)))
            self.now += takes
            self.backoff.record_calls(began)
            if again:
                self._call_after(0, lambda: self.backoff.run_or_queue(call))

        return call

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
        loop.backoff.run_or_queue(loop.caller("a", 0.002))
    assert [at for _, at in loop.calls] == [0.0, 0.002, 0.004]
    assert not loop.timers


def test_half_of_the_time_is_left_and_callers_alternate(loop: Loop) -> None:
    """Also if a caller comes again before the others have called."""
    for name in "abc":
        loop.backoff.run_or_queue(loop.caller(name, 0.05, again=True))
    loop.run(0.85)
    assert loop.calls == [(name, number / 10) for number, name in enumerate("abcabcabc")]


def test_a_call_that_does_not_wait_prolongs_the_rest(loop: Loop) -> None:
    loop.backoff.run_or_queue(loop.caller("a", 0.05))
    loop.caller("now", 0.03)()
    loop.backoff.run_or_queue(loop.caller("b", 0.001))
    loop.run(1)
    assert loop.calls == [("a", 0.0), ("now", 0.05), ("b", 0.16)]


def test_a_function_is_queued_once(loop: Loop) -> None:
    loop.caller("a", 0.05)()
    often = loop.caller("b", 0.001)
    for _ in range(3):
        loop.backoff.run_or_queue(often)
    loop.run(1)
    assert loop.calls == [("a", 0.0), ("b", 0.1)]


def test_after_a_function_that_fails_the_others_run(loop: Loop) -> None:
    def fail() -> None:
        raise RuntimeError

    loop.caller("a", 0.05)()
    loop.backoff.run_or_queue(fail)
    loop.backoff.run_or_queue(loop.caller("b", 0.001))
    with pytest.raises(RuntimeError):
        loop.run(1)
    loop.run(1)
    assert loop.calls == [("a", 0.0), ("b", 0.1)]


def test_the_queue_can_be_cleared(loop: Loop) -> None:
    loop.caller("a", 0.05)()
    loop.backoff.run_or_queue(loop.caller("b", 0.001))
    loop.backoff.clear()
    loop.run(1)
    assert loop.calls == [("a", 0.0)]
    assert not loop.timers
