"""Parks tasks and claims them by the calls of workers, without workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stage import LINES
from celery_throttle import Limiter
from celery_throttle.limits.key import ItemLike
from celery_throttle.operations.waiting import LineTasks, ParkRequest, claim_call, park_call
from celery_throttle.store.script import Call

WORKER = "benchmark"
MESSAGE = b"m" * 300

#: A queue that no worker consumes.
ELSEWHERE = "redis/0/elsewhere"

#: Seconds that a start may be booked ahead, and of a lease.
_HORIZON_SECONDS, _LEASE_SECONDS = 0.02, 30.0


def park(
    limiter: Limiter,
    items: Sequence[ItemLike],
    *ids: str,
    queue: str = LINES,
    acknowledged: Sequence[str] = (),
) -> Call:
    """Return the call by which a worker without a free process parks tasks with the same limits."""
    return _park_lines(
        limiter, [_line_tasks(limiter, items, *ids, queue=queue)], acknowledged=acknowledged
    )


def park_at(limiter: Limiter, tasks: Mapping[str, ItemLike]) -> Call:
    """Return the call by which such a worker parks tasks, by their ids, at one limit each."""
    return _park_lines(limiter, [_line_tasks(limiter, [item], one) for one, item in tasks.items()])


def _line_tasks(
    limiter: Limiter, items: Sequence[ItemLike], *ids: str, queue: str = LINES
) -> LineTasks:
    requirement = limiter.require([limiter[item] for item in items], 1)
    tasks = [
        ParkRequest(one, MESSAGE, requirement, rank=3, identity=f"{one} 0 0", holder=one)
        for one in ids
    ]
    return LineTasks(queue, tasks)


def _park_lines(
    limiter: Limiter, lines: Sequence[LineTasks], acknowledged: Sequence[str] = ()
) -> Call:
    return park_call(
        limiter.keys,
        lines,
        remember=86_400.0,
        lease=_LEASE_SECONDS,
        acknowledged=acknowledged,
    )


def park_at_each(limiter: Limiter, names: list[str], tasks: int, *, of_keys: bool) -> None:
    """Let tasks wait at each limit, elsewhere; ``of_keys``: each at a key of its own."""
    for name in names:
        limiter.store.run_all(
            [
                park(
                    *(limiter, [(name, number) if of_keys else name], f"{name} {number}"),
                    queue=ELSEWHERE,
                )
                for number in range(tasks)
            ]
        )


def claim(limiter: Limiter, tokens: Sequence[int], settled: Sequence[int]) -> Call:
    """Return the call by which a worker claims a task for each token, and settles others."""
    keys = limiter.keys
    return claim_call(
        keys,
        WORKER,
        keys.queue(LINES) if tokens else (),
        range(tokens[0], tokens[0] + len(tokens)) if tokens else range(0),
        lease=_LEASE_SECONDS,
        horizon=_HORIZON_SECONDS,
        soon_free_horizon=_HORIZON_SECONDS,
        settled=settled,
        registered=True,
    )


class Claimant:
    """Claims single tasks from the server of a limiter, and times the calls.

    Attributes:
        token: the token of the last claim.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self.token = 0

    def claim(self, settled: Sequence[int] = ()) -> tuple[float, list[Any]]:
        """Claim a task; return the seconds of the call, and the row of the task in its reply.

        Raises:
            RuntimeError: no task was claimed.
        """
        self.token += 1
        call = claim(self._limiter, [self.token], settled)
        began = time.perf_counter()
        rows = self._limiter.store.run(call)[2:]
        seconds = time.perf_counter() - began
        if [row[0] for row in rows] != [self.token]:
            raise RuntimeError("a claim took no task")
        return seconds, rows[0]
