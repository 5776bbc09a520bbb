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
                park_call(
                    limiter.keys,
                    WaitingTask(f"{name} {number}", QUEUE, 0, 0, None, b"m" * 300),
                    limiter.require([limiter[name, number] if of_keys else name], 1),
                    "0",
                )
                for number in range(tasks)
            ]
        )
