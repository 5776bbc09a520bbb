"""Functions of limits: in threads at first, in place once they are fast."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_throttle import LimitFunctionError, Throttle
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.functions import FunctionCalls
from celery_throttle.worker.admission.request_limits import NotComputedError, limits_of
from celery_throttle.worker.hooks.timers import ThreadTimers
from celery_throttle.worker.task_state import TaskState

#: Seconds of a call that is not fast, and of one that blocks the worker.
SLOW, BLOCKING = 5 * tuning.FAST_FUNCTION_SECONDS, 2 * tuning.BLOCKING_SECONDS


class Bench:
    """Requests of a task, whose limit is a function that notes its threads."""

    def __init__(self) -> None:
        self.app: Any = Celery("functions", set_as_current=False)
        self.throttle = Throttle(self.app, {"mail": "1/h"}, url="memory://")
        self.timers = ThreadTimers()
        self.timers.attach()
        self.now = 0.0
        self.calls = FunctionCalls(self.throttle, self.timers, clock=lambda: self.now)
        self.threads: list[threading.Thread] = []
        self.error: BaseException | None = None

        @self.app.task(name="mail", throttle=self.by_user, lazy=False, shared=False)
        def mail(user: str, *, seconds: float = 0.0) -> None: ...

        self.task = mail

    def by_user(self, user: str, seconds: float) -> str:
        self.threads.append(threading.current_thread())
        self.now += seconds
        if self.error is not None:
            raise self.error
        return f"mail:{user}"

    def request(self, seconds: float = 0.0) -> Any:
        request = SimpleNamespace(
            app=self.app, task=self.task, args=["ada"], kwargs={"seconds": seconds}
        )
        request.request_dict, request.message = {}, None
        request.throttle_state = TaskState(request)
        return request

    def compute(self, seconds: float = 0.0) -> bool:
        """Compute the limits of a request, and return whether that was done in place."""
        request = self.request(seconds)
        ended, in_place = threading.Event(), True
        try:
            self.calls.limits_of(request, lambda _: ended.set())
        except NotComputedError:
            in_place = False
            assert ended.wait(30)
        limits = limits_of(self.throttle, request)
        assert limits is not None
        assert limits.names == {"mail"}
        assert (self.threads[-1] is threading.current_thread()) is in_place
        return in_place

    def calls_until_in_place(self) -> int:
        for calls in range(10_000):
            if self.compute():
                return calls
        raise AssertionError("it stays in threads")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.timers.close()


def test_a_function_that_is_always_fast_is_called_in_place(bench: Bench) -> None:
    assert bench.calls_until_in_place() >= tuning.FAST_FUNCTION_CALLS
    assert bench.compute()


@pytest.mark.parametrize(("calls", "seconds"), [(tuning.SLOW_FUNCTION_CALLS, SLOW), (1, BLOCKING)])
def test_a_function_that_was_slow_is_called_in_threads(
    bench: Bench, calls: int, seconds: float
) -> None:
    bench.calls_until_in_place()
    assert all(bench.compute(seconds) for _ in range(calls))
    assert bench.calls_until_in_place() >= 10 * tuning.FAST_FUNCTION_CALLS


@pytest.mark.parametrize("error", [asyncio.CancelledError("late"), SystemExit("late")])
def test_a_function_in_place_that_would_end_the_worker_fails_its_task(
    bench: Bench, error: BaseException
) -> None:
    bench.calls_until_in_place()
    bench.error = error
    with pytest.raises(LimitFunctionError, match=rf"raised {type(error).__name__}: 'late'"):
        bench.calls.limits_of(bench.request())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), WorkerShutdown(0), WorkerTerminate(0)])
def test_a_signal_that_ends_the_worker_ends_it_within_a_function(
    bench: Bench, error: BaseException
) -> None:
    bench.calls_until_in_place()
    bench.error = error
    with pytest.raises(type(error)):
        bench.calls.limits_of(bench.request())


def test_a_function_that_is_slow_now_and_then_stays_in_threads(bench: Bench) -> None:
    for call in range(3 * tuning.FAST_FUNCTION_CALLS):
        assert not bench.compute(0.0 if call % tuning.FAST_FUNCTION_CALLS else SLOW)


def test_limits_of_a_task_that_still_queues_are_known_once_its_functions_are_fast(
    bench: Bench,
) -> None:
    """So one call takes units for it and for the task before it."""
    with pytest.raises(NotComputedError):
        bench.calls.limits_of(bench.request())
    assert not bench.threads
    bench.calls_until_in_place()
    request = bench.request()
    limits = bench.calls.limits_of(request)
    assert limits is not None
    assert limits is limits_of(bench.throttle, request)
