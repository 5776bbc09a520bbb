"""When a worker polls for tasks, and what one claim call claims."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_throttle import StoreUnavailableError, Throttle
from celery_throttle.limits.key import LimitRef
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.claims.call import Capacity, ClaimCall, ClaimReply, WorkerLeases
from celery_throttle.worker.claims.poller import Poller, Scheduler
from celery_throttle.worker.health.loop_calls import (
    LateReplyError,
    LoopCalls,
    LoopSteps,
    run_in_place,
)
from celery_throttle.worker.hooks.prefork import PreforkPool
from celery_throttle.worker.slots import ReportQueue, SlotKeys, TaskSlots
from celery_throttle.worker.tuning import (
    BOOKING_HORIZON_SECONDS,
    CLAIM_BATCH_SIZE,
    CLAIM_RETRY_SECONDS,
    SOON_FREE_SECONDS,
)
from tests.protocol import Protocol


class Timer:
    """A worker's timers, which make the next call when the test says so."""

    may_block = False

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
    """The scheduler of a prefork worker with one process; its claim calls are counted."""

    def __init__(self) -> None:
        self.polls = self.passed = 0
        pool = SimpleNamespace(_putlock=None, _processes=1, _cache={}, _all_inqueues=[1])
        self._pool = pool
        self._semaphore = LaxBoundedSemaphore(1)
        self.timer = Timer()
        hub = SimpleNamespace(call_soon=lambda call, *args: call(*args))
        wrapper = SimpleNamespace(_pool=pool, num_processes=1, maintain_pool=lambda: None)
        self._controller = SimpleNamespace(hub=hub, pool=wrapper, semaphore=self._semaphore)
        self.recent_starts = self.short_runs = 0
        self._consumer = SimpleNamespace(hub=hub, controller=self._controller)

    def _claim(
        self, capacity: Callable[[], Capacity], *, is_passing: bool = False
    ) -> LoopSteps[ClaimReply]:
        self.polls += capacity().free > 0
        self.passed += is_passing
        yield from ()
        return ClaimReply(0.001)

    def connect(self) -> None:
        nothing: Any = SimpleNamespace(
            claim=self._claim,
            replied_at=0.0,
            unstarted=list,
            recent_starts=lambda: self.recent_starts,
            short_runs=lambda: self.short_runs,
            releases=(),
            settled=(),
            has_reports=False,
            has_new=bool,
            is_on=False,
            ended=0.0,
        )
        nothing.claims = nothing.slots = nothing
        pool = PreforkPool(self._controller)
        self._semaphore.value = 1 - len(self._pool._cache)
        timers: Any = self.timer
        self.calls = LoopCalls(timers)
        self.scheduler = Scheduler(self._consumer, timers, pool, [nothing])
        self.poller = Poller(
            self.scheduler,
            self._consumer,
            timers,
            call=nothing,
            revoked=nothing,
            dispatcher=nothing,
            outage=nothing,
            calls=self.calls,
        )
        self.poller.poll_in(0)
        self.timer.run()

    def lose_the_broker(self) -> None:
        self._semaphore.clear()  # as Celery's consumer does
        self.scheduler.stop()
        self.poller.stop()
        self.calls.close()

    def begin(self) -> None:
        self._semaphore.acquire(lambda: None)
        self._pool._cache[1] = SimpleNamespace(_worker_lost=None)
        self.poller.poll_in(0)
        self.timer.run()

    def end(self) -> int:
        """End the task; return the number of polls that follow."""
        before = self.polls
        self._pool._cache.clear()
        self._semaphore.release()
        self.timer.run()
        return self.polls - before


def test_a_busy_worker_polls_again_after_it_lost_the_broker() -> None:
    """It was in the queue for a process, which Celery empties then."""
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


def test_a_worker_without_a_process_lets_others_poll_once() -> None:
    """They expect it to poll at the time that it was given."""
    worker = OneProcess()
    worker.connect()
    worker.begin()
    assert (worker.polls, worker.passed) == (1, 1)
    worker.poller.poll_in(0)
    worker.timer.run()
    assert worker.passed == 1
    assert worker.end()
    worker.begin()
    assert worker.passed == 2


def test_a_slot_that_is_released_while_tasks_are_dispatched_is_reported_after_them() -> None:
    """A strategy of a task's own may acknowledge its message at once. The loop may not wait for
    itself."""
    worker = OneProcess()

    def claim(capacity: Callable[[], Capacity], **_: Any) -> LoopSteps[ClaimReply]:
        worker.polls += capacity().free > 0
        yield from ()
        tasks: Any = ["a task"] if worker.polls == 2 else []
        return ClaimReply(3600, tasks=tasks)

    def release(_: str) -> None:
        worker.poller.call.slots.releases.append(("entries", "lists", "holder"))
        worker.poller.on_released()

    def run() -> None:
        worker.connect()
        worker.poller.call.slots.releases = ReportQueue()
        worker.poller.call.claim = claim  # type: ignore[method-assign]  # with a task
        worker.poller.dispatcher = cast("Any", SimpleNamespace(dispatch=release))
        worker.poller.poll_in(0)
        worker.timer.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert worker.polls == 3


@pytest.mark.parametrize("is_late", [False, True])
def test_a_worker_polls_again_after_an_unexpected_error(*, is_late: bool) -> None:
    worker = OneProcess()
    worker.connect()
    receive: list[Callable[[Any], None]] = []
    error = RuntimeError("a mistake")

    def fail(steps: LoopSteps[Any], receive_late: Callable[[Any], None]) -> Any:
        receive.append(receive_late)
        steps.close()
        raise LateReplyError if is_late else error

    worker.calls.run = cast("Any", fail)  # type: ignore[method-assign]  # a mistake of ours
    worker.scheduler._due_times.clear()
    with suppress(RuntimeError):
        worker.poller.run()
    if is_late:
        with pytest.raises(RuntimeError):
            receive[0](error)
    assert worker.poller in worker.scheduler._due_times


def make_call(lines: Protocol, *queues: str) -> tuple[ClaimCall, Claims]:
    app = Celery("asks", broker="memory://", set_as_current=False)
    throttle = Throttle(app, {"api": "1/h burst 1000"}, url=lines.store.url)
    claims = Claims(throttle.store, throttle.keys, "w", lambda: None)
    slots: Any = SimpleNamespace(releases=ReportQueue[Any]())
    consumed: Any = SimpleNamespace(keys=lambda: [lines.keys.queue(name) for name in queues])
    call = ClaimCall(throttle, claims, slots, consumed, lambda: None)
    return call, claims


def test_without_a_call_there_are_no_tokens_to_requeue(lines: Protocol) -> None:
    """After hours of an outage there would be too many for one call."""
    call, claims = make_call(lines, "q")
    breaker = call.throttle.store.breaker
    breaker.watcher = lambda _: None
    breaker.trip(StoreUnavailableError("it is out"))
    for _ in range(60):
        assert run_in_place(call.claim(lambda: Capacity(100))) is None
    assert claims._to_requeue == []


def test_leases_that_could_not_be_renewed_are_renewed_soon(lines: Protocol) -> None:
    """Other workers wait some seconds only after an outage."""
    lines.park("one", ["api"], may_run=False)
    call, _ = make_call(lines, "q")
    call.slots = TaskSlots("w", lambda: None)
    assert run_in_place(call.claim(lambda: Capacity(1)))
    leases = WorkerLeases(call)
    leases._renewed_at -= leases.interval + 1
    call.replied_at = 0.0
    call.throttle.store.breaker.trip(StoreUnavailableError("it is out"))
    leases.renew_in_time()
    assert not call.replied_at
    call.throttle.store.breaker.close()
    leases.renew_in_time()
    assert call.replied_at


def test_what_a_failed_call_was_to_report_is_reported_soon(lines: Protocol) -> None:
    """Also while no process is free and nothing is held: other workers wait for slot and task."""
    lines.park("one", ["api"], may_run=False)
    call, claims = make_call(lines, "q")
    call.slots = TaskSlots("w", lambda: None)
    leases = WorkerLeases(call)
    call.slots.release("w 1", [SlotKeys("{throttle}:entries:x", "{throttle}:waiting-lists:x")])
    lines.client.set(lines.keys.unacknowledged, "of another type")
    call.take_acknowledged = lambda: ["one"]
    assert run_in_place(call.claim(lambda: Capacity(1))) == ClaimReply(CLAIM_RETRY_SECONDS)
    lines.client.delete(lines.keys.unacknowledged)
    assert call.slots.releases
    assert claims.has_pending
    leases.renew_in_time()
    assert not call.slots.releases
    assert not claims.has_pending


def test_uncertain_claims_are_requeued_in_batches(lines: Protocol) -> None:
    for number in range(250):
        lines.park(str(number), ["api"], may_run=False)
    _, claims = make_call(lines, "q")
    assert len(lines.claim("w", room=250)) == 250
    sizes: list[int] = []
    requeue = claims._run_requeue

    def counted(worker: str, which: str, limit: int, returned: Any = ()) -> int:
        sizes.append(len(returned))
        return requeue(worker, which, limit, returned)

    claims._run_requeue = counted  # type: ignore[method-assign]  # counts, and goes on
    claims.requeue_uncertain(range(1, 251))
    claims.requeue_pending()
    assert sizes == [100, 100, 50]
    assert len(lines.waiting()) == 250
    lines.check()


def test_a_claim_that_cannot_be_requeued_stops_nothing_else(lines: Protocol) -> None:
    for number in range(3):
        lines.park(str(number), ["api"], may_run=False)
    call, claims = make_call(lines, "q")
    reply = run_in_place(call.claim(lambda: Capacity(2)))
    assert reply
    damaged, other = (task.claim for task in reply.tasks)
    stored, workers = lines.keys.claims("w"), lines.keys.workers
    lines.client.hset(stored, damaged.token, "no claim")
    lease = lines.client.zscore(workers, "w")
    damaged.requeue()
    assert other.start()
    claims.settle(other)
    reply = run_in_place(call.claim(lambda: Capacity(1)))
    assert reply
    (task,) = reply.tasks
    assert {*map(int, lines.client.hkeys(stored))} == {damaged.token, task.claim.token}
    assert lines.client.zscore(workers, "w") > lease
    lines.client.delete(stored, workers)


def test_while_claims_are_in_doubt_no_others_are_made(lines: Protocol) -> None:
    """Or each call that fails could claim more tasks that cannot be requeued."""
    for number in range(4):
        lines.park(str(number), ["api"], may_run=False)
    call, claims = make_call(lines, "q")
    lines.claim()  # a call that has failed in the middle
    backlog = lines.keys.backlog(LimitRef("api", None))
    lines.client.delete(backlog)
    lines.client.hset(backlog, "of another type", 1)  # so no task can join a line
    claims.requeue_uncertain(range(1, 2))
    lines.client.set(lines.keys.unacknowledged, "of another type")
    call.take_acknowledged = lambda: ["one"]
    assert run_in_place(call.claim(lambda: Capacity(1))) == ClaimReply(CLAIM_RETRY_SECONDS)
    lines.client.delete(lines.keys.unacknowledged)
    for _ in range(3):
        assert run_in_place(call.claim(lambda: Capacity(1))) == ClaimReply(CLAIM_RETRY_SECONDS)
    assert len(lines.waiting()) == 3
    assert len(claims._to_requeue) == 2
    lines.client.delete(backlog)
    reply = run_in_place(call.claim(lambda: Capacity(1)))
    assert reply
    assert len(reply.tasks) == 1


def test_revoked_tasks_are_withdrawn_by_one_poll_at_a_time() -> None:
    """In pools of greenlets, polls overlap: each waits for the server in a greenlet of its own."""
    worker = OneProcess()
    worker.connect()
    worker.timer.may_block = True
    under_way, most = 0, 0

    def withdraw() -> list[Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.05)
        under_way -= 1
        return []

    worker.poller.revoked = cast("Any", SimpleNamespace(has_new=lambda: True, withdraw=withdraw))
    threads = [threading.Thread(target=worker.poller._poll) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_each_queue_is_served(lines: Protocol) -> None:
    """Even if each queue has more due tasks than there are processes."""
    for queue in "abc":
        for number in range(4):
            lines.park(f"{queue}{number}", ["api"], queue=queue, may_run=False)
    call, _ = make_call(lines, *"abc")
    replies = [run_in_place(call.claim(lambda: Capacity(1))) for _ in range(6)]
    tasks = [task for reply in replies if reply for task in reply.tasks]
    left = sorted(task_id[0] for task_id in lines.waiting())
    assert len(tasks) == 6
    assert left == sorted("aabbcc")


def test_a_call_also_claims_for_processes_that_will_be_free_soon(lines: Protocol) -> None:
    lines.limiter["api"].define("1000/s burst 1000")
    for number in range(300):
        lines.park(str(number), ["api"], may_run=False)
    call, _ = make_call(lines, "q")
    for free, soon, taken in ((0, 9, 0), (1, 0, 1), (1, 4, 5), (300, 9, CLAIM_BATCH_SIZE)):
        steps = call.claim(lambda: Capacity(free, soon))  # noqa: B023  # called at once
        reply = run_in_place(steps)
        assert reply
        assert len(reply.tasks) == taken
        assert not taken or reply.wait == 0  # more are due


def test_processes_are_expected_to_be_free_soon_where_tasks_end_fast() -> None:
    worker = OneProcess()
    worker.connect()
    worker.recent_starts = 40
    expected = 40 * SOON_FREE_SECONDS / BOOKING_HORIZON_SECONDS
    assert worker.poller._capacity() == Capacity(1, int(expected), contended=False)
    worker.short_runs, worker.recent_starts = 3, 2
    assert worker.poller._capacity().soon_free == 0  # nothing runs in its process
    worker._controller.pool.num_processes = 3
    assert worker.poller._capacity() == Capacity(1, 2, soon_free_horizon=BOOKING_HORIZON_SECONDS)
    worker._controller.pool.num_processes = 1
    worker._semaphore.acquire(lambda: None)
    worker._semaphore.acquire(lambda: None)  # a task waits for a process, and gets the next one
    assert worker.poller._capacity().soon_free == 0


class Shard:
    """Polls of a shard that claims one task each time."""

    more_are_due = False

    def __init__(self, name: str, polled: list[str], booked: list[str]) -> None:
        self._name, self._polled, self._booked = name, polled, booked

    def pass_poll(self) -> None:
        pass

    def run(self) -> None:
        self._polled.append(self._name)
        self._booked.append(self._name)


class TwoShards:
    """The scheduler of two shards that share a pool."""

    def __init__(self, processes: int) -> None:
        self.timer = Timer()
        self.polled: list[str] = []
        self.booked: list[str] = []
        self.queue: list[Callable[[], None]] = []
        pool: Any = SimpleNamespace(count_free=lambda: processes, call_when_free=self.queue.append)
        claims: Any = SimpleNamespace(unstarted=lambda: self.booked)
        timers: Any = self.timer
        self.calls = LoopCalls(timers)
        self.scheduler = Scheduler(SimpleNamespace(), timers, pool, [claims])
        self.first: Any = Shard("a", self.polled, self.booked)
        self.second: Any = Shard("b", self.polled, self.booked)


def test_one_process_is_not_given_to_the_claims_of_two_shards() -> None:
    worker = TwoShards(processes=1)
    for shard in (worker.first, worker.second):
        worker.scheduler.poll_in(shard, 0)
    worker.timer.run()
    assert worker.polled == ["a"]
    worker.booked.clear()  # its task has begun and ended
    (on_process_free,) = worker.queue
    on_process_free()
    assert worker.polled == ["a", "b"]


def test_the_most_overdue_shard_polls_first() -> None:
    worker = TwoShards(processes=2)
    worker.scheduler.poll_in(worker.second, 0)
    worker.scheduler.poll_in(worker.first, 0)
    worker.scheduler.poll_in(worker.second, 5)  # it is due already
    worker.timer.run()
    assert worker.polled == ["b", "a"]


def test_a_shard_that_is_not_due_does_not_poll_with_another() -> None:
    worker = TwoShards(processes=2)
    worker.scheduler.poll_in(worker.first, 3600)
    worker.scheduler.poll_in(worker.second, 0)
    worker.timer.run(times=1)
    assert worker.polled == ["b"]
    ((seconds, *_),) = worker.timer.calls
    assert 3500 < seconds <= 3600
