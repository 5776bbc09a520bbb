"""Signals of a worker, sent in its main process. They need Celery.

A receiver takes the arguments by name, and further arguments as ``**kwargs``. It runs in the thread
that sends the signal, so it must return quickly. If it raises an error, Celery logs the error.

``task_throttled``: A task waits now.
    sender: The task.
    request: Its :class:`celery.worker.request.Request`.
    limit: The name of the limit that refused the task, or for which it would wait longest.
    key: The encoded key of the limit, or None.
    retry_after: Seconds until that limit has room; 0.0 if it has. None if a limit of the task is
        paused until it is resumed.
    position: The position in the line, from 1; 0 with ``throttle_waiting = "broker"``.
    expected: Seconds until the task is expected to start; None as for ``retry_after``.

``task_released``: A task that has waited has its units, and is about to start.
    sender: The task.
    request: Its request.
    wait: Seconds that the task spent in the line, or waited at the broker.
    limit: The name of the limit that the task waited for last; "@fan-out" if that was the end of
        the pause of its fan-out.
    key: The encoded key of the limit, or None.
    position: The position in the line when the task joined it, from 1; 0 with
        ``throttle_waiting = "broker"``.

``task_admitted``: A task with limits has its units, and is about to start.
    sender: The task.
    request: Its request.
    wait: As for ``task_released``; 0.0 if the task did not wait.

``throttle_mode_changed``: The limits server was lost, or is back.
    sender: The app.
    mode: ``"outage"`` or ``"normal"``.
    count: The number of outages of that server that this worker has seen, this one included.
    server: The URL of the server, without user, password and options.
    prefix: The prefix of the limits' keys there.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["task_admitted", "task_released", "task_throttled", "throttle_mode_changed"]

task_throttled = Signal(
    name="task_throttled",
    providing_args=["request", "limit", "key", "retry_after", "position", "expected"],
)
task_released = Signal(
    name="task_released", providing_args=["request", "wait", "limit", "key", "position"]
)
task_admitted = Signal(name="task_admitted", providing_args=["request", "wait"])
throttle_mode_changed = Signal(
    name="throttle_mode_changed", providing_args=["mode", "count", "server", "prefix"]
)
