"""How many processes of the pool are free, and how to be told when one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from celery.worker import state

#: Seconds between two looks at the pool where nothing tells when a process is free.
LOOK = 0.004


class Processes(Protocol):
    """The free processes (threads, greenlets) of a worker's pool."""

    #: Whether Celery drops tasks of it that were not begun when it loses the broker.
    drops: bool

    def free(self) -> int:
        """How many could start a task now."""

    def has_place(self) -> bool:
        """Whether a request that is here, but not in the pool, could start now."""

    def contended(self) -> bool:
        """Whether tasks wait in this worker for a process."""

    def waiting(self) -> Iterator[Any]:
        """Requests that wait in this worker for a process, the next first."""

    def when_free(self, call: Callable[[], None]) -> None:
        """Call once a process is free, in turn with the tasks that wait for one."""


def processes_of(consumer: Any) -> Processes:
    """The right one for the worker's pool."""
    controller = consumer.controller
    if controller.semaphore is not None and controller.pool_cls.uses_semaphore:
        return _Guarded(controller.semaphore)
    return _Counted(consumer)


class _Guarded:
    """A prefork pool: Celery's semaphore has one place a process, and a queue for them."""

    drops = True

    def __init__(self, semaphore: Any) -> None:
        self._semaphore = semaphore

    def free(self) -> int:
        return int(self._semaphore.value)

    def has_place(self) -> bool:
        return self.free() > 0

    def contended(self) -> bool:
        return bool(self._semaphore._waiting)  # noqa: SLF001  # it offers no other look at its queue

    def waiting(self) -> Iterator[Any]:
        for _, args, _ in self._semaphore._waiting:  # noqa: SLF001  # see above
            if args:
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
            semaphore.release()


class _Counted:
    """Any other pool: what it can hold less what Celery has handed or is about to hand to it."""

    drops = False

    def __init__(self, consumer: Any) -> None:
        self._pool = consumer.pool
        self._timer = consumer.timer

    def free(self) -> int:
        return max(0, int(self._pool.num_processes) - len(state.reserved_requests))

    def has_place(self) -> bool:
        return not self.contended()

    def contended(self) -> bool:
        return len(state.reserved_requests) > int(self._pool.num_processes)

    def waiting(self) -> Iterator[Any]:
        return iter(())  # such a pool has them already

    def when_free(self, call: Callable[[], None]) -> None:
        if self.free() > 0:
            call()
        else:
            self._timer.call_after(LOOK, self.when_free, (call,))
