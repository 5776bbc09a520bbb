"""When a worker asks for tasks: it never stops to, whatever it meets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery import Celery
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_throttle import StoreUnavailableError, Throttle
from celery_throttle.worker.admission.quota_cache import HORIZON
from celery_throttle.worker.claims.call import MOST, SOON, Asked, Claiming
from celery_throttle.worker.claims.claims import Claims
from celery_throttle.worker.claims.scheduler import Asking
from celery_throttle.worker.health.backoff import Pace
from celery_throttle.worker.pool import _Guarded
from celery_throttle.worker.timers import ThreadTimers
from tests.protocol import Protocol


class Timer:
    """A worker's timer that is at each time at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[..., Any], tuple[Any, ...]]] = []

    def call_after(self, seconds: float, call: Callable[..., Any], args: Any = ()) -> Any:
        self.calls.append((seconds, call, args))
        return self.calls[-1]

    def cancel(self, entry: Any) -> None:
        if entry in self.calls:
            self.calls.remove(entry)

    def run(self, times: int = 3) -> None:
        for _ in range(times):
            if self.calls:
                first = min(self.calls, key=lambda entry: entry[0])
                self.calls.remove(first)
                first[1](*first[2])


class OneProcess:
    """A prefork worker of one process that asks, as far as that goes."""

    def __init__(self) -> None:
        self.asks = 0
        pool = SimpleNamespace(_putlock=None, _processes=1, _cache={}, _all_inqueues=[1])
        self._pool = pool
        self._semaphore = LaxBoundedSemaphore(1)
        self.timer = Timer()
        hub = SimpleNamespace(call_soon=lambda call, *args: call(*args))
        wrapper = SimpleNamespace(_pool=pool, maintain_pool=lambda: None)
        self._controller = SimpleNamespace(hub=hub, pool=wrapper, semaphore=self._semaphore)
        consumer = SimpleNamespace(hub=hub, controller=self._controller)
        timers: Any = self.timer
        nothing: Any = SimpleNamespace(
            ask=self._ask, booked=list, unreported=lambda: False, withdraw=list, heard=0.0
        )
        self._pace = Pace(timers)
        self._asking = Asking(
            consumer,
            timers,
            nothing,
            nothing,
            nothing,
            revoked=nothing,
            outage=SimpleNamespace(is_on=False, ended=0.0),  # type: ignore[arg-type]  # a look at it
            pace=self._pace,
            listen=lambda _: None,
        )

    def _ask(self, room: Callable[[], int], _soon: Callable[[], int]) -> Asked:
        self.asks += room() > 0
        return Asked(0.001, "", [])

    def connect(self) -> None:
        processes = _Guarded(self._controller)
        self._semaphore.value = 1 - len(self._pool._cache)
        self._asking.start(processes, lambda _: None)
        self._asking.ask_in(0)
        self.timer.run()

    def lose_the_broker(self) -> None:
        self._semaphore.clear()  # as Celery's consumer does
        self._asking.stop()
        self._pace.stop()

    def begin(self) -> None:
        self._semaphore.acquire(lambda: None)
        self._pool._cache[1] = SimpleNamespace(_worker_lost=None)
        self._asking.ask_in(0)
        self.timer.run()

    def end(self) -> int:
        """How often it asks then."""
        before = self.asks
        self._pool._cache.clear()
        self._semaphore.release()
        self.timer.run()
        return self.asks - before


def test_a_busy_worker_asks_again_after_it_lost_the_broker() -> None:
    """It waited in the queue for a process, which Celery forgets then."""
    worker = OneProcess()
    worker.connect()
    worker.begin()
    assert worker.end()
    worker.begin()
    worker.lose_the_broker()
    worker.connect()
    assert worker.end()
    worker.begin()
    assert worker.end()


def claiming(lines: Protocol, *queues: str) -> tuple[Claiming, Claims]:
    app = Celery("asks", broker="memory://", set_as_current=False)
    throttle = Throttle(app, {"api": "1/h burst 1000"}, url=lines.store.url)
    claims = Claims(throttle.store, throttle.keys, "w", lambda: None)
    slots: Any = SimpleNamespace(take_releases=list, release_again=lambda _: None)
    consumed: Any = SimpleNamespace(keys=lambda: [(lines.keys.queue(name),) for name in queues])
    claiming = Claiming(throttle, claims, slots, consumed, Pace(ThreadTimers()))
    claiming.use(
        SimpleNamespace(acknowledged=list),  # type: ignore[arg-type]  # all that is asked
        SimpleNamespace(contended=lambda: False),
    )
    return claiming, claims


def test_no_token_is_in_doubt_that_no_call_was_made_for(lines: Protocol) -> None:
    """An outage of hours would make a list that no call could give back in time."""
    asks, claims = claiming(lines, "q")
    breaker = asks._throttle.store.breaker
    breaker.watcher = lambda _: None
    breaker.trip(StoreUnavailableError("it is out"))
    for _ in range(60):
        assert asks.ask(lambda: 100) is None
    assert claims._unsure == []


def test_what_is_in_doubt_is_given_back_in_portions(lines: Protocol) -> None:
    for number in range(250):
        lines.park(str(number), ["api"], may_run=False)
    _, claims = claiming(lines, "q")
    assert len(lines.claim("w", room=250)) == 250
    sizes: list[int] = []
    back = claims._back

    def counted(worker: str, which: str, most: int, tokens: Any) -> int:
        sizes.append(len(tokens))
        return back(worker, which, most, tokens)

    claims._back = counted  # type: ignore[method-assign]  # counts, and goes on
    claims.doubt(range(1, 251))
    claims.give_back_unsure()
    assert sizes == [100, 100, 50]
    assert len(lines.waiting()) == 250
    lines.check()


def test_each_queue_has_its_turn(lines: Protocol) -> None:
    """Also if more is due in each than there are processes."""
    for queue in "abc":
        for number in range(4):
            lines.park(f"{queue}{number}", ["api"], queue=queue, may_run=False)
    asks, _ = claiming(lines, *"abc")
    taken = [asks.ask(lambda: 1) for _ in range(6)]
    tasks = [task for asked in taken if asked for task in asked.tasks]
    left = sorted(task_id[0] for task_id in lines.waiting())
    assert len(tasks) == 6
    assert left == sorted("aabbcc")


def test_a_call_is_also_for_processes_that_will_be_free_in_a_moment(lines: Protocol) -> None:
    lines.limiter.define("api", "1000/s burst 1000")
    for number in range(300):
        lines.park(str(number), ["api"], may_run=False)
    asks, _ = claiming(lines, "q")
    for free, soon, taken in ((0, 9, 0), (1, 0, 1), (1, 4, 5), (300, 9, MOST)):
        asked = asks.ask(lambda: free, lambda: soon)  # noqa: B023  # called at once
        assert asked
        assert len(asked.tasks) == taken
        assert not taken or asked.wait == 0  # more are due


def test_processes_are_free_in_a_moment_where_tasks_end_fast() -> None:
    worker = OneProcess()
    worker.connect()
    worker._asking._claims = SimpleNamespace(recent=lambda: 40)  # type: ignore[assignment]  # all that is asked
    assert worker._asking._soon() == 40 * SOON / HORIZON
    worker._semaphore.acquire(lambda: None)
    worker._semaphore.acquire(lambda: None)  # a task waits for a process: the next is for it
    assert worker._asking._soon() == 0
