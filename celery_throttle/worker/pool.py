"""How many processes of the pool are free, and how to be told when one is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakSet

from celery.worker import state

if TYPE_CHECKING:
    from celery_throttle.worker.timers import Timers

#: Seconds between two looks at a pool that tells of the ends of no tasks but those with limits.
LOOK = 0.004


class Processes(Protocol):
    """The free processes (threads, greenlets) of a worker's pool."""

    #: Whether Celery drops tasks of it that were not begun when it loses the broker.
    drops: bool

    #: Whether a task runs where it is handed over: nothing else is done until it has ended.
    inline: bool

    #: Requests that wait in this worker: neither in the pool nor about to be handed to it.
    outside: WeakSet[Any]

    def free(self) -> int:
        """How many could start a task now."""

    def has_turn(self, request: Any) -> bool:
        """Whether there is one for a request at the gate; if not, it is brought when there is."""

    def has_place(self) -> bool:
        """Whether a request that is here, but not in the pool, could start now."""

    def contended(self) -> bool:
        """Whether tasks wait in this worker for a process."""

    def waiting(self) -> Iterable[Any]:
        """Requests that wait in this worker for a process, the next first."""

    def when_free(self, call: Callable[[], None]) -> None:
        """Call once a process is free, in turn with the tasks that wait for one."""

    def left(self) -> None:
        """A task has left the pool. Comes from whatever thread ended it."""


def processes_of(consumer: Any, timers: Timers, bring: Callable[[Any], None]) -> Processes:
    """The right one for the worker's pool.

    Args:
        consumer: Celery's.
        timers: of the worker.
        bring: brings a request to the gate once more.
    """
    controller = consumer.controller
    guarded = controller.pool_putlocks and controller.pool_cls.uses_semaphore
    if controller.semaphore is not None and guarded:
        return _Guarded(controller)
    if controller.pool_cls.__module__ == "celery.concurrency.solo":
        return _Inline(consumer.pool, timers, bring)
    return _Counted(consumer.pool, timers, bring)


def scale_up(controller: Any) -> None:
    """Tasks are due and no process is free: Celery's autoscaler, if there is one, sees no lines."""
    scaler = getattr(controller, "autoscaler", None)
    if scaler is not None and scaler.processes < scaler.max_concurrency:
        with scaler.mutex:
            scaler.scale_up(1)
            controller.pool.maintain_pool()


class _Guarded:
    """A prefork pool: Celery's semaphore has one place a process, and a queue for them.

    Celery lets it count wrong, and then tasks wait in the pool, their quota taken: it counts a new
    process twice while all others are busy, and starts it seconds later; it frees a place twice
    when it replaces a process, and all when it has lost the broker. That is put right here.
    """

    drops = True
    inline = False

    def __init__(self, controller: Any) -> None:
        self._hub, self._wrapper = controller.hub, controller.pool
        self._semaphore = semaphore = controller.semaphore
        self._ends = False
        self.outside: WeakSet[Any] = WeakSet()
        semaphore.value = max(0, semaphore.initial_value - len(state.active_requests))
        semaphore.release = self._ended
        self._pool._putlock = SimpleNamespace(  # noqa: SLF001  # by which the pool tells of processes
            grow=self._grow, shrink=semaphore.shrink, release=self._replaced, clear=semaphore.clear
        )

    @property
    def _pool(self) -> Any:
        return self._wrapper._pool  # noqa: SLF001  # billiard's, None once it has ended

    def _grow(self) -> None:
        self._semaphore.initial_value += 1
        self._free_one()
        self._hub.call_soon(self._wrapper.maintain_pool)

    def _ended(self) -> None:
        """A task ends. It is among those in the pool still."""
        self._ends = True
        self._replaced()
        self._ends = False

    def _replaced(self) -> None:
        """A process has ended, and with it the task that it ran, if it did."""
        if self._pool is not None and self._spare() > 0:
            self._free_one()

    def _free_one(self) -> None:
        type(self._semaphore).release(self._semaphore)

    def _spare(self) -> int:
        """Processes, those to come included, less tasks in the pool that need one."""
        jobs = sum(job._worker_lost is None for job in self._pool._cache.values())  # noqa: SLF001
        return int(self._pool._processes) - jobs + int(self._ends)  # noqa: SLF001

    def free(self) -> int:
        pool = self._pool
        if pool is None:
            return 0
        # Those that are up and have no task.
        ready = len(pool._all_inqueues) - len(pool._cache) + int(self._ends)  # noqa: SLF001
        return max(0, min(int(self._semaphore.value), ready))

    def has_turn(self, _request: Any) -> bool:
        return True  # or Celery would not have handed it over

    def has_place(self) -> bool:
        return bool(self._semaphore.value > 0)

    def contended(self) -> bool:
        return bool(self._semaphore._waiting)  # noqa: SLF001  # it offers no other look at its queue

    def waiting(self) -> Iterable[Any]:
        for call, args, _ in self._semaphore._waiting:  # noqa: SLF001  # see above
            if args and call != self._turn:
                yield args[0]

    def when_free(self, call: Callable[[], None]) -> None:
        self._semaphore.acquire(self._turn, call)

    def _turn(self, call: Callable[[], None]) -> None:
        # The place is ours now. Laid open while the call looks, it is taken by the task that is
        # found, by Celery's own way; what is not taken goes to the next in the queue.
        semaphore = self._semaphore
        semaphore.value += 1
        call()
        if semaphore.value > 0:
            semaphore.value -= 1
            self._free_one()

    def left(self) -> None:
        """Celery's semaphore tells."""


class _Waiter(NamedTuple):
    call: Callable[[], None]
    request: Any = None


class _Counted:
    """Any other pool. Celery hands it each task at once: those with limits wait here for a place.

    Places are those of the pool less the tasks that are in it or about to be. Where tasks without
    limits queue in the pool, the first that waits here has its turn when all have begun that were
    in the pool before it; it queues there, then.
    """

    drops = False
    inline = False

    def __init__(self, pool: Any, timers: Timers, bring: Callable[[Any], None]) -> None:
        self._pool = pool
        self._timers = timers
        self._bring = bring
        self._queue: deque[_Waiter] = deque()
        self._turn_at = 0
        self._granted = False
        self._looks = False
        self._serves = False
        self.outside: WeakSet[Any] = WeakSet()

    def _inside(self) -> int:
        return len(state.reserved_requests) - len(self.outside)

    def _queued(self) -> int:
        """How many of those have not begun."""
        return max(0, self._inside() - len(state.active_requests))

    def _places(self) -> int:
        return int(self._pool.num_processes) - self._inside()

    def free(self) -> int:
        return max(int(self._granted), self._places())

    def has_turn(self, request: Any) -> bool:
        if self._granted or (not self._queue and self.has_place()):
            self._granted = False
            return True
        self._wait(_Waiter(lambda: self._bring(request), request))
        return False

    def has_place(self) -> bool:
        return self._places() >= 0  # it is among those counted

    def contended(self) -> bool:
        return bool(self._queue) or not self.has_place()

    def waiting(self) -> Iterable[Any]:
        return [waiter.request for waiter in list(self._queue) if waiter.request is not None]

    def when_free(self, call: Callable[[], None]) -> None:
        if not self._queue and self.free() > 0:
            call()
        else:
            self._wait(_Waiter(call))

    def left(self) -> None:
        if self._queue:
            self._timers.call_soon(self._serve)

    def _wait(self, waiter: _Waiter) -> None:
        if not self._queue:
            self._turn_at = self._begun() + self._queued()
        self._queue.append(waiter)
        if not self._looks:
            self._looks = True
            self._timers.call_after(LOOK, self._look)

    def _look(self) -> None:
        self._looks = bool(self._queue)
        if self._queue:
            self._timers.call_after(LOOK, self._look)
            self._serve()

    def _serve(self) -> None:
        if self._serves:  # in another greenlet
            return
        self._serves = True
        try:
            while self._queue and self._is_turn():
                waiter = self._queue.popleft()
                self._turn_at = self._begun() + self._queued() + 1
                self._granted = True
                waiter.call()
                self._granted = False
        finally:
            self._serves = self._granted = False

    def _is_turn(self) -> bool:
        passed = self._begun() >= self._turn_at and self._queued() > 0
        return passed or self._places() > 0

    @staticmethod
    def _begun() -> int:
        """How many tasks have begun since the start."""
        return int(state.all_total_count[0])


class _Inline(_Counted):
    """A solo pool: it is free whenever its one thread comes to the gate."""

    inline = True

    def has_turn(self, _request: Any) -> bool:
        return True
