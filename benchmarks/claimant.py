"""Claims single tasks as a worker does, and times the calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.stage import LINES
from celery_throttle import Limiter
from celery_throttle.operations.waiting import claim_call

WORKER = "benchmark"

#: Seconds that a start may be booked ahead.
_HORIZON_SECONDS = 0.02


class Claimant:
    """Claims from the server of a limiter.

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
        keys = self._limiter.keys
        self.token += 1
        call = claim_call(
            keys,
            WORKER,
            keys.queue(LINES),
            range(self.token, self.token + 1),
            lease=30.0,
            horizon=_HORIZON_SECONDS,
            soon_free_horizon=_HORIZON_SECONDS,
            settled=settled,
        )
        began = time.perf_counter()
        rows = self._limiter.store.run(call)[2:]
        seconds = time.perf_counter() - began
        if [row[0] for row in rows] != [self.token]:
            raise RuntimeError("a claim took no task")
        return seconds, rows[0]
