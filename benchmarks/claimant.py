"""One who takes tasks out of lines as workers do, and says how long it took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.stage import LINES
from celery_throttle import Limiter
from celery_throttle.store.script import Call, script

WORKER = "benchmark"


class Claimant:
    """Of a limiter's server and prefix.

    Attributes:
        token: of the task that was taken last.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self.token = 0

    def claim(self, settled: Sequence[int] = ()) -> tuple[float, list[Any]]:
        """Take a task, see ``claim.lua``; gives the seconds it took, and its row.

        Raises:
            RuntimeError: there was none.
        """
        keys = self._limiter.keys
        self.token += 1
        names = [
            keys.limits,
            keys.unacknowledged,
            keys.workers,
            keys.claims(WORKER),
            *keys.queue(LINES),
        ]
        lease, room, ahead, longest, none = 30_000_000, 1, 20_000, 1_000_000, 0
        told = [lease, room, ahead, self.token, longest, len(settled), none, none, room, ahead]
        claim = Call(
            script("claim"), names, ["", WORKER, keys.wakeup_channel(WORKER), *told, *settled]
        )
        began = time.perf_counter()
        rows = self._limiter.store.run(claim)[2:]
        seconds = time.perf_counter() - began
        if [row[0] for row in rows] != [self.token]:
            raise RuntimeError("a claim took no task")
        return seconds, rows[0]
