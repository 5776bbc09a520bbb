"""Claimed tasks are delivered to Celery on time, or requeued."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.worker.request import Request
from kombu import Message

from celery_throttle.tasks.messages import packing
from celery_throttle.testing import ManualClock
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.quarantine import Quarantine
from celery_throttle.worker.health.loop_calls import LoopCalls
from celery_throttle.worker.hooks.timers import ThreadTimers
from celery_throttle.worker.tuning import BOOKING_HORIZON_SECONDS as HORIZON
from tests.protocol import Protocol
from tests.servers.server import Server


class LateTimer:
    """The timers of a loop that a task keeps busy."""

    def call_after(self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        time.sleep(seconds + 2 * HORIZON)
        call(*args)


@pytest.mark.parametrize("late", [False, True])
def test_a_task_whose_start_has_passed_goes_back_to_its_line(redis_url: str, *, late: bool) -> None:
    """Its start would come too close to the next. Its unit is given back."""
    now = ManualClock(time.time_ns() // 1_000)  # as the server's, by which claims are requeued
    lines = Protocol(redis_url, {"api": "1/h"}, now)
    packed = packing.pack(Message("[[], {}, {}]", headers={"task": "one"}))
    lines.park("one", ["api"], message=packed, may_run=False)
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    (row,) = lines.claim("w")
    token = claims.reserve_tokens(1)
    taken = claims.receive([token, 1, late * 1000, 0, row.message, b"one", b"api", 1])

    began: list[str] = []
    consumer = SimpleNamespace(
        app=SimpleNamespace(tasks={"one": SimpleNamespace(name="one", Request=Request)}),
        on_task_message=[],
        strategies={"one": lambda message, *_: began.append(message.claim.token)},
        task_consumer=SimpleNamespace(accept=None),
    )
    timers: Any = LateTimer()
    pool: Any = SimpleNamespace(count_free=lambda: 1)
    unused: Any = None
    in_place: Any = SimpleNamespace(may_block=True)
    calls = LoopCalls(in_place)
    dispatcher = Dispatcher(consumer, claims, unused, pool, timers, unused, calls)
    dispatcher.dispatch(taken)
    assert len(began) == (not late)
    assert lines.waiting() == (["one"] if late else [])
    lines.now += 10**6
    assert [again.id for again in lines.claim("w")] == (["one"] if late else [])
    lines.close()


def test_a_task_that_went_back_before_its_start_waits_for_no_process(redis_url: str) -> None:
    """The broker was lost: over the next connection, what waits for a process is a request."""
    lines = Protocol(redis_url, {"api": "1/h"}, ManualClock())
    packed = packing.pack(Message("[[], {}, {}]", headers={"task": "one"}))
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    taken = claims.receive([1, 1, 1_000, 0, packed, b"one", b"api", 1])
    consumer = SimpleNamespace(strategies={"one": None}, task_consumer=SimpleNamespace(accept=None))
    due: list[Callable[[], None]] = []
    timers: Any = SimpleNamespace(call_after=lambda _, call, args: due.append(partial(call, *args)))
    waiters: list[Callable[[], None]] = []
    pool: Any = SimpleNamespace(count_free=lambda: 0, call_when_free=waiters.append)
    unused: Any = None
    Dispatcher(consumer, claims, unused, pool, timers, unused, unused).dispatch(taken)
    claims.requeue([taken.claim])
    (start,) = due
    start()
    assert not waiters
    lines.close()


def test_a_task_without_code_does_not_block_the_loop(own_server: Server) -> None:
    """The server does not reply when the task is put into quarantine."""
    now = ManualClock(time.time_ns() // 1_000)
    lines = Protocol(own_server.url, {"api": "1/h"}, now)  # waits half a minute for a reply
    packed = packing.pack(Message("[[], {}, {}]", headers={"task": "unknown"}))
    lines.park("one", ["api"], message=packed, may_run=False)
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    (row,) = lines.claim("w")
    token = claims.reserve_tokens(1)
    taken = claims.receive([token, 1, 0, 0, row.message, b"one", b"api", 1])
    quarantine = Quarantine(claims, tuple, dict)
    consumer = SimpleNamespace(strategies={}, task_consumer=SimpleNamespace(accept=None))
    timers, unused = ThreadTimers(), cast("Any", None)
    calls = LoopCalls(timers)
    dispatcher = Dispatcher(consumer, claims, quarantine, unused, timers, unused, calls)
    own_server.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        dispatcher.dispatch(taken)
        assert time.monotonic() - began < 10
    finally:
        own_server.signal(signal.SIGCONT)
    calls.close()
    assert lines.client.hkeys(lines.keys.quarantine) == [b"one"]
    lines.close()
