"""A process that sends tasks: ``python -m benchmarks.apps.publisher TASK COUNT NAME``; prints JSON.

They are a fan-out of that name; with an empty name it sends them by ``delay()`` in a loop.

What it prints: when it began (seconds since the epoch), how many seconds it took, and how many
bytes of memory it had at most beyond what it had after the first thousand tasks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.apps import ours

#: Tasks between two looks at the memory.
LOOK = 1_000

#: What each task is given: with it, the arguments of a task are 300 bytes as JSON.
TEXT = "x" * 292


def main(task: str, count: int, name: str) -> None:
    """Send so many."""
    process = psutil.Process()
    seen: list[int] = []

    def signatures() -> Iterator[Any]:
        for number in range(count):
            if number % LOOK == 0:
                seen.append(process.memory_info().rss)
            yield ours.app.tasks[task].s(TEXT)

    began = time.time()
    if name:
        ours.throttle.fan_out(signatures(), name)
    else:
        for signature in signatures():
            signature.delay()
    seconds = time.time() - began
    grown = max(seen) - seen[min(1, len(seen) - 1)]
    print(json.dumps({"began": began, "seconds": seconds, "grown": grown}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
