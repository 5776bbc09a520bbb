"""Tasks that are on their way to a process of a prefork pool when its worker stops.

Laws at stake here: *each once* and *never idle*. When a worker stops or has lost its broker, Celery
forgets the tasks that no process has confirmed. If such a task has been written to the pipe of its
process, the process runs it all the same, although the task is also requeued. The process then
waits up to 30 s for a reader of the result, and the worker waits with it. A task from a line is
often written at just that moment, because the worker sees that it must stop when it wakes up to
start the next task.

So a free process gets a moment to confirm its task before Celery forgets anything.
"""

from __future__ import annotations

import time
from inspect import isgenerator
from select import select
from typing import Any

from celery_throttle.worker import tuning


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
        processes = _processes_to_begin(pool)
        if not processes:
            return
        _continue_writing(pool, processes)
        pipes = [process.outqR_fd for process in processes]
        readable, _, _ = select(pipes, [], [], tuning.PIPE_CHECK_SECONDS)
        for fd in readable:
            _read(pool, hub, fd)


def _processes_to_begin(pool: Any) -> list[Any]:
    """Return the live processes that have a task in their pipes and run no other."""
    jobs = list(pool._cache.values())  # noqa: SLF001  # billiard shows it nowhere else
    busy = {id(job._write_to) for job in jobs if job._accepted}  # noqa: SLF001
    written = [job._write_to for job in jobs if not job._accepted]  # noqa: SLF001
    return [
        process
        for process in written
        if process is not None and id(process) not in busy and process._is_alive()  # noqa: SLF001
    ]


def _continue_writing(pool: Any, processes: list[Any]) -> None:
    """Write the rest of tasks that did not fit into a pipe at once."""
    for job in list(pool._cache.values()):  # noqa: SLF001  # as above
        reference = getattr(job, "_writer", None)
        writer = reference() if reference is not None else None
        if job._write_to in processes and writer in pool._active_writers:  # noqa: SLF001
            pool._flush_writer(job._write_to, writer)  # noqa: SLF001


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
