"""The pool: how many of its processes are free, and who waits for one.

Each kind of pool has a class here. A *process* is a thread or a greenlet in pools of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from celery.worker import state

from celery_throttle.worker import tuning
from celery_throttle.worker.hooks.timers import Timers


class WorkerPool(Protocol):
    """The processes of one worker, over one connection to the broker."""

    #: Whether Celery drops tasks that have not begun when it loses the broker.
    drops_tasks: bool

    #: Whether a task runs in the thread that hands it over, which does nothing else until its end.
    runs_inline: bool

    #: Reserved requests that the pool does not count: those that are neither in it nor about to be.
    idle_requests: WeakSet[Any]

    def count_processes(self) -> int:
        """Return the number of processes, free or not."""

    def count_free(self) -> int:
        """Return the number of processes that could start a task now."""

    def enter(self, request: Any) -> bool:
        """Return whether a request at the gate has a process; otherwise queue it for one."""

    def has_room(self) -> bool:
        """Return whether a request that is counted, but not in the pool yet, could start now."""

    def is_contended(self) -> bool:
        """Return whether tasks wait in this worker for a process."""

    def queued_requests(self) -> Iterable[Any]:
        """Return the requests that wait in this worker for a process, the next first."""

    def call_when_free(self, function: Callable[[], None]) -> None:
        """Call a function once a process is free, in turn with the requests that wait for one."""

    def lend(self, function: Callable[[], None]) -> None:
        """Call a function with the process of the request at the gate, which it may pass on."""

    def on_exit(self) -> None:
        """Take note that a task has left the pool. Thread-safe."""


def make_pool(consumer: Any, timers: Timers, readmit: Callable[[Any], None]) -> WorkerPool:
    """Make the object for Celery's pool, by its kind."""
    controller = consumer.controller
    guarded = controller.pool_putlocks and controller.pool_cls.uses_semaphore
    if controller.semaphore is not None and guarded:
        return _PreforkPool(controller)
    modules = {each.__module__ for each in controller.pool_cls.__mro__}
    if "celery.concurrency.solo" in modules:
        return _SoloPool(consumer.pool, timers, readmit)
    if "celery.concurrency.gevent" in modules:
        return _GeventPool(consumer.pool, timers, readmit)
    return _CountedPool(consumer.pool, timers, readmit)


def scale_up(controller: Any, pool: WorkerPool) -> None:
    """Add a process if Celery's autoscaler is on: it does not see the tasks in lines."""
    scaler = getattr(controller, "autoscaler", None)
    if scaler is not None and pool.count_processes() < scaler.max_concurrency:
        with scaler.mutex:
            scaler.scale_up(1)
            controller.pool.maintain_pool()


class _PreforkPool:
    """A prefork pool: Celery's semaphore has a permit for each process, and a queue of waiters.

    Celery lets the semaphore miscount, and then tasks wait in the pool with their quota taken: it
    counts a new process twice while all others are busy, and starts it seconds later; it releases
    a permit twice when it replaces a process, and all permits when it loses the broker. This class
    corrects the count.
    """

    drops_tasks = True
    runs_inline = False

    def __init__(self, controller: Any) -> None:
        self._hub, self._wrapper = controller.hub, controller.pool
        self._semaphore = semaphore = controller.semaphore
        self._task_is_ending = False
        self.idle_requests: WeakSet[Any] = WeakSet()
        semaphore.value = max(0, semaphore.initial_value - len(state.active_requests))
        semaphore.release = self._on_task_end
        self._pool._putlock = SimpleNamespace(  # noqa: SLF001  # through which the pool reports its processes
            grow=self._grow,
            shrink=semaphore.shrink,
            release=self._on_process_end,
            clear=semaphore.clear,
        )

    @property
    def _pool(self) -> Any:
        return self._wrapper._pool  # noqa: SLF001  # billiard's, None once it has ended

    def _grow(self) -> None:
        self._semaphore.initial_value += 1
        self._release_permit()
        self._hub.call_soon(self._wrapper.maintain_pool)

    def _on_task_end(self) -> None:
        """Release the permit of a task that ends. The pool still counts the task."""
        self._task_is_ending = True
        self._on_process_end()
        self._task_is_ending = False

    def _on_process_end(self) -> None:
        """Release the permit of a process that has ended, with the task that it ran, if any."""
        pool = self._pool
        if pool is not None and self._has_spare(pool):
            self._release_permit()

    def _release_permit(self) -> None:
        type(self._semaphore).release(self._semaphore)

    def _has_spare(self, pool: Any) -> bool:
        """Return whether there are more processes, with those to come, than tasks that need one."""
        spare = int(pool._processes) - len(pool._cache) + self._task_is_ending  # noqa: SLF001  # billiard's
        if spare > 0:
            return True
        # Tasks whose process was lost need none.
        return spare + sum(job._worker_lost is not None for job in pool._cache.values()) > 0  # noqa: SLF001

    def count_processes(self) -> int:
        return int(self._wrapper.num_processes)

    def count_free(self) -> int:
        pool = self._pool
        if pool is None:
            return 0
        idle = len(pool._all_inqueues) - len(pool._cache) + int(self._task_is_ending)  # noqa: SLF001
        return max(0, min(int(self._semaphore.value), idle))

    def enter(self, _request: Any) -> bool:
        return True  # or Celery would not have handed it over

    def has_room(self) -> bool:
        return bool(self._semaphore.value > 0)

    def is_contended(self) -> bool:
        return bool(self._semaphore._waiting)  # noqa: SLF001  # its queue is not public

    def queued_requests(self) -> Iterable[Any]:
        for function, args, _ in self._semaphore._waiting:  # noqa: SLF001  # see above
            if args and function != self.lend:
                yield args[0]

    def call_when_free(self, function: Callable[[], None]) -> None:
        self._semaphore.acquire(self.lend, function)

    def lend(self, function: Callable[[], None]) -> None:
        # We own this permit. Release it for the function: a task that it finds takes the permit in
        # Celery's own way. If nothing takes it, pass it to the next waiter.
        semaphore = self._semaphore
        semaphore.value += 1
        function()
        if semaphore.value > 0:
            semaphore.value -= 1
            self._release_permit()

    def on_exit(self) -> None:
        """Do nothing: Celery's semaphore takes note."""


class _Waiter(NamedTuple):
    function: Callable[[], None]
    request: Any = None


class _CountedPool:
    """Any other pool. Celery hands each task over at once; tasks with limits queue for it here.

    The pool has as many free processes as it has processes, less the tasks that are in it or about
    to be. Where tasks without limits queue in the pool, the first waiter here is served when all
    tasks have begun that were in the pool before it; then it queues in the pool.
    """

    drops_tasks = False
    runs_inline = False

    def __init__(self, pool: Any, timers: Timers, readmit: Callable[[Any], None]) -> None:
        self._pool = pool
        self._timers = timers
        self._readmit = readmit
        self._waiters: deque[_Waiter] = deque()
        #: Number of begun tasks at which the first waiter is served.
        self._serve_at = 0
        self._is_granted = False
        self._is_checking = False
        self._is_serving = False
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
        return int(self._pool.num_processes)

    def count_free(self) -> int:
        return max(int(self._is_granted), self._count_spare())

    def enter(self, request: Any) -> bool:
        if self._is_granted or (not self._waiters and self.has_room()):
            self._is_granted = False
            return True
        self._queue(_Waiter(lambda: self._readmit(request), request))
        return False

    def has_room(self) -> bool:
        return self._count_spare() >= 0  # the request is counted already

    def is_contended(self) -> bool:
        return bool(self._waiters) or not self.has_room()

    def queued_requests(self) -> Iterable[Any]:
        return [waiter.request for waiter in list(self._waiters) if waiter.request is not None]

    def call_when_free(self, function: Callable[[], None]) -> None:
        if not self._waiters and self.count_free() > 0:
            function()
        else:
            self._queue(_Waiter(function))

    def lend(self, function: Callable[[], None]) -> None:
        function()
        self.on_exit()

    def on_exit(self) -> None:
        if self._waiters:
            self._timers.call_soon(self._serve)

    def _queue(self, waiter: _Waiter) -> None:
        if not self._waiters:
            self._serve_at = self._count_begun() + self._count_not_begun()
        self._waiters.append(waiter)
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
                waiter = self._waiters.popleft()
                self._serve_at = self._count_begun() + self._count_not_begun() + 1
                self._is_granted = True
                waiter.function()
                self._is_granted = False
        finally:
            self._is_serving = self._is_granted = False

    def _can_serve(self) -> bool:
        reached = self._count_begun() >= self._serve_at and self._count_not_begun() > 0
        return reached or self._count_spare() > 0

    @staticmethod
    def _count_begun() -> int:
        """Return the number of tasks that have begun since the worker started."""
        return int(state.all_total_count[0])


class _GeventPool(_CountedPool):
    """A gevent pool. Before Celery 5.7, `num_processes` is the number of its running greenlets."""

    def count_processes(self) -> int:
        # Nor does `limit` follow `pool_grow` there.
        return int(self._pool._pool.size)  # noqa: SLF001  # gevent's


class _SoloPool(_CountedPool):
    """A solo pool, which is free whenever its one thread comes to the gate."""

    runs_inline = True

    def enter(self, _request: Any) -> bool:
        return True
