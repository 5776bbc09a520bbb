"""Tasks that wait at many limits, in a queue that no worker consumes."""

from __future__ import annotations

from celery_throttle import Limiter
from celery_throttle.operations.waiting import WaitingTask, park_call

QUEUE = "redis/0/elsewhere"


def park_at_each(limiter: Limiter, names: list[str], tasks: int, *, of_keys: bool) -> None:
    """Let tasks wait at each limit; ``of_keys``: each at a key of its own."""
    for name in names:
        limiter.store.run_all(
            [
                park_call(limiter.keys, QUEUE, [_task(limiter, name, number, of_keys=of_keys)])
                for number in range(tasks)
            ]
        )


def _task(limiter: Limiter, name: str, number: int, *, of_keys: bool) -> WaitingTask:
    requirement = limiter.require([limiter[name, number] if of_keys else name], 1)
    return WaitingTask(f"{name} {number}", b"m" * 300, requirement)
