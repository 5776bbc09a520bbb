"""The pool: how many of its processes are free, and who waits for one.

Each kind of pool has a class. A *process* is a thread or a greenlet in pools of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from weakref import WeakSet

from celery.worker import state

from celery_throttle.worker import tuning
from celery_throttle.worker.hooks.prefork import PreforkPool
from celery_throttle.worker.hooks.timers import Timers


class CountedPool:
    """Any pool but prefork, of one worker, over one connection to the broker.

    Celery hands each task over at once; tasks with limits queue for a process here. The pool has
    as many free processes as it has processes, less the tasks that are in it or about to be. Where
    tasks without limits queue in the pool, the first waiter here is served when all tasks have
    begun that were in the pool before it; then it queues in the pool.
    """

    #: Whether Celery drops tasks that have not begun when it loses the broker.
    drops_tasks = False
    #: Whether a task runs in the thread that hands it over, which does nothing else until its end.
    runs_inline = False

    def __init__(self, pool: Any, timers: Timers, readmit: Callable[[Any], None]) -> None:
        # Celery before 5.7 forgets, when it loses the broker, that it has reserved what runs.
        for request in tuple(state.active_requests):
            state.reserved_requests.add(request)
        self._pool = pool
        self._timers = timers
        self._readmit = readmit
        #: What is called when a process is free, with the request that it is for, if any.
        self._waiters: deque[tuple[Callable[[], None], Any]] = deque()
        #: Number of begun tasks at which the first waiter is served.
        self._serve_at = 0
        self._is_granted = False
        self._is_checking = False
        self._is_serving = False
        #: Reserved requests that are neither in the pool nor about to be: it does not count them.
        self.idle_requests: WeakSet[Any] = WeakSet()

    def _count_tasks(self) -> int:
        """Return the number of tasks that are in the pool or about to be."""
        return len(state.reserved_requests) - len(self.idle_requests)

    def _count_not_begun(self) -> int:
        """Return how many of these have not begun."""
        return max(0, self._count_tasks() - len(state.active_requests))

    def _count_spare(self) -> int:
        return self.count_processes() - self._count_tasks()

    def count_processes(self) -> int:
        """Return the number of processes, free or not."""
        return int(self._pool.num_processes)

    def count_free(self) -> int:
        """Return the number of processes that could start a task now."""
        return max(int(self._is_granted), self._count_spare())

    def enter(self, request: Any) -> bool:
        """Return whether a request at the gate has a process; otherwise queue it for one."""
        if self._is_granted or (not self._waiters and self.has_room()):
            self._is_granted = False
            return True
        self._queue(lambda: self._readmit(request), request)
        return False

    def has_room(self) -> bool:
        """Return whether a request that is counted, but not in the pool yet, could start now."""
        return self._count_spare() >= 0

    def is_contended(self) -> bool:
        """Return whether tasks wait in this worker for a process."""
        return bool(self._waiters) or not self.has_room()

    def queued_requests(self) -> Iterable[Any]:
        """Return the requests that wait in this worker for a process, the next first."""
        return [request for _, request in list(self._waiters) if request is not None]

    def call_when_free(self, function: Callable[[], None]) -> None:
        """Call a function once a process is free, in turn with the requests that wait for one."""
        if not self._waiters and self.count_free() > 0:
            function()
        else:
            self._queue(function)

    def lend(self, function: Callable[[], None]) -> None:
        """Call a function with the process of the request at the gate, which it may pass on."""
        function()
        self.on_exit()

    def on_exit(self) -> None:
        """Take note that a task has left the pool. Thread-safe."""
        if self._waiters:
            self._timers.call_soon(self._serve)

    def _queue(self, function: Callable[[], None], request: Any = None) -> None:
        if not self._waiters:
            self._serve_at = _count_begun() + self._count_not_begun()
        self._waiters.append((function, request))
        if not self._is_checking:
            self._is_checking = True
            self._timers.call_after(tuning.POOL_CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Serve waiters, as the ends of tasks without limits are not reported."""
        self._is_checking = bool(self._waiters)
        if self._waiters:
            self._timers.call_after(tuning.POOL_CHECK_SECONDS, self._check)
            self._serve()

    def _serve(self) -> None:
        if self._is_serving:  # in another greenlet
            return
        self._is_serving = True
        try:
            while self._waiters and self._can_serve():
                function, _ = self._waiters.popleft()
                self._serve_at = _count_begun() + self._count_not_begun() + 1
                self._is_granted = True
                function()
                self._is_granted = False
        finally:
            self._is_serving = self._is_granted = False

    def _can_serve(self) -> bool:
        reached = _count_begun() >= self._serve_at and self._count_not_begun() > 0
        return reached or self._count_spare() > 0


def _count_begun() -> int:
    """Return the number of tasks that have begun since the worker started."""
    return int(state.all_total_count[0])


class _GeventPool(CountedPool):
    """A gevent pool. Before Celery 5.7, `num_processes` is the number of its running greenlets."""

    def count_processes(self) -> int:
        # Nor does `limit` follow `pool_grow` there.
        return int(self._pool._pool.size)  # noqa: SLF001  # gevent's


class _SoloPool(CountedPool):
    """A solo pool, which is free whenever its one thread comes to the gate."""

    runs_inline = True

    def enter(self, _request: Any) -> bool:
        return True


WorkerPool: TypeAlias = PreforkPool | CountedPool


def make_pool(consumer: Any, timers: Timers, readmit: Callable[[Any], None]) -> WorkerPool:
    """Make the object for Celery's pool, by its kind. ``readmit`` brings a request to the gate."""
    controller = consumer.controller
    guarded = controller.pool_putlocks and controller.pool_cls.uses_semaphore
    if controller.semaphore is not None and guarded:
        return PreforkPool(controller)
    modules = {each.__module__ for each in controller.pool_cls.__mro__}
    kind = CountedPool
    if "celery.concurrency.solo" in modules:
        kind = _SoloPool
    elif "celery.concurrency.gevent" in modules:
        kind = _GeventPool
    return kind(consumer.pool, timers, readmit)


def scale_up(controller: Any, pool: WorkerPool) -> None:
    """Add a process if Celery's autoscaler is on: it does not see the tasks in lines."""
    scaler = getattr(controller, "autoscaler", None)
    if scaler is not None and pool.count_processes() < scaler.max_concurrency:
        with scaler.mutex:
            scaler.scale_up(1)
            controller.pool.maintain_pool()
