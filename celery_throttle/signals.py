"""Signals, sent in the worker's main process.

``task_throttled``: a task waits in its line now, as a limit refused it, or no process is free.
    sender: the task. request: its :class:`celery.worker.request.Request`. limit: name of the limit
    that refused, or that the task would wait for longest. key: its key or None. retry_after:
    seconds until that limit has room again, 0.0 if it has.
    position: position in the line, from 1. expected: seconds until the task is expected to run.
    retry_after and expected are None if a limit is paused until it is resumed.

``task_released``: a task was claimed from its line, with its quota, and is about to start.
    sender: the task. request: its request. waited: seconds that it spent in the line.

``throttle_mode_changed``: the server of the limits was lost, or is back.
    sender: the app. mode: ``"outage"`` or ``"normal"``. count: the number of outages that this
    worker has seen.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

task_throttled = Signal(
    name="task_throttled",
    providing_args=["request", "limit", "key", "retry_after", "position", "expected"],
)
task_released = Signal(name="task_released", providing_args=["request", "waited"])
throttle_mode_changed = Signal(name="throttle_mode_changed", providing_args=["mode", "count"])
