"""Tasks that are on their way to a process of a prefork pool when its worker stops.

Laws at stake here: *each once* and *never idle*. When a worker stops or has lost its broker, Celery
forgets the tasks whose processes have not said yet that they began them. If such a task has been
written to the pipe of its process, the process runs it all the same, although the task is also
given back. The process then waits up to 30 s for somebody to read the result, and the worker with
it. A task from a line is often written at just that moment, because the worker sees that it is to
stop when it wakes up to start the next task.

So a free process gets a moment to say that it began its task before Celery forgets anything.
"""

from __future__ import annotations

import time
from inspect import isgenerator
from select import select
from typing import Any

#: Seconds that a free process has to begin the task in its pipe. It takes less than a millisecond,
#: unless the machine is busy.
BEGIN_SECONDS = 5.0

#: Seconds between two looks at processes that may have died.
LOOK = 0.1


def let_written_begin(consumer: Any) -> None:
    """Let tasks in the pipes of free processes begin before Celery forgets those that did not.

    Args:
        consumer: Celery's. Unless it has an event loop and a prefork pool, nothing is done: other
            pools have no pipes.
    """
    pool = consumer.pool
    flush = vars(pool).get("flush")  # a prefork pool has one of its own
    if consumer.hub is None or flush is None or getattr(flush, "lets_written_begin", False):
        return

    def flush_later() -> None:
        if pool._pool is not None:  # noqa: SLF001  # billiard's; None once it has ended
            _let_begin(pool._pool, consumer.hub)  # noqa: SLF001  # see above
        flush()

    flush_later.lets_written_begin = True  # type: ignore[attr-defined]
    pool.flush = flush_later


def _let_begin(pool: Any, hub: Any) -> None:
    until = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < until:
        processes = _beginning(pool)
        if not processes:
            return
        _go_on_writing(pool, processes)
        readable, _, _ = select([process.outqR_fd for process in processes], [], [], LOOK)
        for fd in readable:
            _read(pool, hub, fd)


def _beginning(pool: Any) -> list[Any]:
    """The processes that were written a task, have not begun it and are free to."""
    jobs = list(pool._cache.values())  # noqa: SLF001  # nothing else tells
    busy = {id(job._write_to) for job in jobs if job._accepted}  # noqa: SLF001
    written = [job._write_to for job in jobs if not job._accepted]  # noqa: SLF001
    return [
        process
        for process in written
        if process is not None and id(process) not in busy and process._is_alive()  # noqa: SLF001
    ]


def _go_on_writing(pool: Any, processes: list[Any]) -> None:
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
