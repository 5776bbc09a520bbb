"""A prefork pool: Celery's semaphore has a permit for each process, and a queue of waiters.

When a worker stops or has lost its broker, Celery forgets the tasks that no process has confirmed.
If such a task has been written to the pipe of its process, the process runs it all the same,
although the task is also requeued. The process then waits up to 30 s for a reader of the result,
and the worker waits with it. A task from a line is often written at just that moment, because the
worker sees that it must stop when it wakes up to start the next task. So a free process gets a
moment to confirm its task before Celery forgets anything.

Laws at stake here: *each once* and *never idle*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from inspect import isgenerator
from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from celery.worker import state

from celery_throttle.worker import tuning


class PreforkPool:
    """The processes of a prefork pool; for what its methods have to do see ``CountedPool``.

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
        self._release_permit = partial(type(semaphore).release, semaphore)
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
        """Release the permit of a process that has ended, with the task that it ran, if any.

        Only if there are more processes, with those to come, than tasks that need one.
        """
        pool = self._pool
        if pool is None:
            return
        spare = int(pool._processes) - len(pool._cache) + self._task_is_ending  # noqa: SLF001  # billiard's
        if spare <= 0:  # tasks whose process was lost need none
            spare += sum(job._worker_lost is not None for job in pool._cache.values())  # noqa: SLF001
        if spare > 0:
            self._release_permit()

    def count_processes(self) -> int:
        """Return the number of processes, as Celery's pool counts them."""
        return int(self._wrapper.num_processes)

    def count_free(self) -> int:
        """Return the number of processes that are idle and have a permit."""
        pool = self._pool
        if pool is None:
            return 0
        idle = len(pool._all_inqueues) - len(pool._cache) + int(self._task_is_ending)  # noqa: SLF001
        return max(0, min(int(self._semaphore.value), idle))

    def enter(self, _request: Any) -> bool:
        """Return True: otherwise Celery would not have handed the request over."""
        return True

    def has_room(self) -> bool:
        """Return whether the semaphore has a permit."""
        return bool(self._semaphore.value > 0)

    def is_contended(self) -> bool:
        """Return whether anything waits for a permit."""
        return bool(self._semaphore._waiting)  # noqa: SLF001  # its queue is not public

    def queued_requests(self) -> Iterable[Any]:
        """Return the requests that wait for a permit."""
        for function, args, _ in self._semaphore._waiting:  # noqa: SLF001  # see above
            if args and function != self.lend:
                yield args[0]

    def call_when_free(self, function: Callable[[], None]) -> None:
        """Call a function with a permit, which it may pass on."""
        self._semaphore.acquire(self.lend, function)

    def lend(self, function: Callable[[], None]) -> None:
        """Release our permit for a function: a task that it finds takes it in Celery's own way."""
        semaphore = self._semaphore
        semaphore.value += 1
        function()
        if semaphore.value > 0:  # nothing has taken it: it goes to the next waiter
            semaphore.value -= 1
            self._release_permit()

    def on_exit(self) -> None:
        """Do nothing: Celery's semaphore takes note."""


def confirm_before_flush(consumer: Any) -> None:
    """Let free processes begin the tasks in their pipes before Celery forgets those tasks.

    Without an event loop and a prefork pool nothing is done: other pools have no pipes.
    """
    pool = consumer.pool
    flush = vars(pool).get("flush")  # only a prefork pool has one of its own
    if consumer.hub is None or flush is None or getattr(flush, "confirms_first", False):
        return

    def confirm_and_flush() -> None:
        if pool._pool is not None:  # noqa: SLF001  # billiard's; None once it has ended
            _wait_for_begin(pool._pool, consumer.hub)  # noqa: SLF001  # see above
        flush()

    confirm_and_flush.confirms_first = True  # type: ignore[attr-defined]
    pool.flush = confirm_and_flush


def _wait_for_begin(pool: Any, hub: Any) -> None:
    until = time.monotonic() + tuning.PIPE_BEGIN_SECONDS
    while time.monotonic() < until:
        jobs = list(pool._cache.values())  # noqa: SLF001  # billiard shows it nowhere else
        processes = _processes_to_begin(jobs)
        if not processes:
            return
        for job in jobs:  # write the rest of those that did not fit into a pipe at once
            reference = getattr(job, "_writer", None)
            writer = reference() if reference is not None else None
            if job._write_to in processes and writer in pool._active_writers:  # noqa: SLF001
                pool._flush_writer(job._write_to, writer)  # noqa: SLF001
        pipes = {process.outqR_fd for process in processes}
        # Not `select`, which refuses numbers above 1023.
        readable: list[Any] = wait(pipes, tuning.PIPE_CHECK_SECONDS)
        for fd in readable:
            _read(pool, hub, fd)


def _processes_to_begin(jobs: Iterable[Any]) -> list[Any]:
    """Return the live processes that have one of the jobs in their pipes and run no other."""
    busy = {id(job._write_to) for job in jobs if job._accepted}  # noqa: SLF001
    written = [job._write_to for job in jobs if not job._accepted]  # noqa: SLF001
    return [
        process
        for process in written
        if process is not None and id(process) not in busy and process._is_alive()  # noqa: SLF001
    ]


def _read(pool: Any, hub: Any, fd: int) -> None:
    """Read a message of a process, as the event loop would."""
    read, args = hub.readers.get(fd, (pool.handle_result_event, (fd,)))
    if not isgenerator(read):
        read(*args)
        return
    try:
        next(read)  # the rest of a message
    except (StopIteration, OSError, EOFError):
        return
