"""A worker of pydocket, whose tasks have a limit; or, with a number, adds so many tasks."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from docket import Docket, RateLimit, Worker

from benchmarks.apps.tasks import DIRECTORY, SETTINGS
from benchmarks.marks import open_marks, write

_STARTS = open_marks(DIRECTORY / "starts")
_LIMIT = RateLimit(int(SETTINGS["api"].removesuffix("/s")), per=timedelta(seconds=1))
ID = "x" * 36


async def limited(_rate: RateLimit = _LIMIT) -> None:
    """Write a mark."""
    write(_STARTS, ID)


async def run(tasks: int) -> None:
    """Add tasks, or work for ever."""
    async with Docket("race", url=SETTINGS["store"]) as docket:
        if tasks:
            for _ in range(tasks):
                await docket.add(limited)()
            return
        docket.register(limited)
        # By default a worker looks four times a second for tasks: eight starts a second for two
        # tasks at once, with or without a limit.
        often = timedelta(milliseconds=10)
        async with Worker(
            docket, concurrency=2, minimum_check_interval=often, scheduling_resolution=often
        ) as worker:
            (DIRECTORY / "ready").touch()
            await worker.run_forever()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
