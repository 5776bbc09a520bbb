"""What a slow server may take of a worker's time. The time is passed in."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.worker import alarm
from celery_throttle.worker.health import backoff
from celery_throttle.worker.health.backoff import Pace


class Loop:
    """A worker's timer, and calls to its server, each of which takes a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.calls: list[tuple[str, float]] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (alarm, backoff):
            monkeypatch.setattr(module, "time", clock)
        timers: Any = SimpleNamespace(call_after=self._call_after, cancel=self._cancel)
        self.pace = Pace(timers)

    def _call_after(self, seconds: float, call: Callable[[], None]) -> Any:
        self.timers.append((self.now + seconds, call))
        return self.timers[-1]

    def _cancel(self, timer: Any) -> None:
        self.timers.remove(timer)

    def asker(self, name: str, takes: float, *, again: bool = False) -> Callable[[], None]:
        """What asks the server; ``again``: as often as it may."""

        def ask() -> None:
            began = self.now
            self.calls.append((name, round(began - 1_000.0, 6)))
            self.now += takes
            self.pace.spent(began)
            if again:
                self._call_after(0, lambda: self.pace.in_turn(ask))

        return ask

    def run(self, until: float) -> None:
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= 1_000.0 + until:
            timer = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_a_fast_server_is_asked_at_once(loop: Loop) -> None:
    for _ in range(3):
        loop.pace.in_turn(loop.asker("a", 0.002))
    assert [at for _, at in loop.calls] == [0.0, 0.002, 0.004]
    assert not loop.timers


def test_half_of_the_time_is_left_and_each_has_its_turn(loop: Loop) -> None:
    """Also to one that comes again before the others have had theirs."""
    for name in "abc":
        loop.pace.in_turn(loop.asker(name, 0.05, again=True))
    loop.run(0.85)
    assert loop.calls == [(name, number / 10) for number, name in enumerate("abcabcabc")]


def test_calls_that_cannot_wait_are_made_up_for(loop: Loop) -> None:
    loop.pace.in_turn(loop.asker("a", 0.05))
    loop.asker("now", 0.03)()
    loop.pace.in_turn(loop.asker("b", 0.001))
    loop.run(1)
    assert loop.calls == [("a", 0.0), ("now", 0.05), ("b", 0.16)]


def test_one_turn_however_often_it_is_asked_for(loop: Loop) -> None:
    loop.asker("a", 0.05)()
    often = loop.asker("b", 0.001)
    for _ in range(3):
        loop.pace.in_turn(often)
    loop.run(1)
    assert loop.calls == [("a", 0.0), ("b", 0.1)]


def test_one_that_fails_takes_no_turn_from_the_others(loop: Loop) -> None:
    def fail() -> None:
        raise RuntimeError

    loop.asker("a", 0.05)()
    loop.pace.in_turn(fail)
    loop.pace.in_turn(loop.asker("b", 0.001))
    with pytest.raises(RuntimeError):
        loop.run(1)
    loop.run(1)
    assert loop.calls == [("a", 0.0), ("b", 0.1)]


def test_nobody_has_a_turn_over_another_connection(loop: Loop) -> None:
    loop.asker("a", 0.05)()
    loop.pace.in_turn(loop.asker("b", 0.001))
    loop.pace.stop()
    loop.run(1)
    assert loop.calls == [("a", 0.0)]
    assert not loop.timers
