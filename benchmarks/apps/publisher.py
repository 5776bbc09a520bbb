"""Sends tasks: ``python -m benchmarks.apps.publisher TASK COUNT NAME [TRACER ...]``.

They are a fan-out of that name; with an empty name it sends them by ``delay()`` in a loop. For the
tracers see ``tracers.py``.

It prints JSON: when it began (seconds since the epoch), its seconds, and its largest growth of
memory (bytes) after the first thousand tasks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.apps import ours
from benchmarks.apps.tracers import trace

#: Tasks between two measurements of the memory.
MEASURE_INTERVAL = 1_000

#: The argument of each task, with which all arguments are 300 bytes as JSON.
TEXT = "x" * 292


def main(task: str, count: int, name: str) -> None:
    """Send the tasks."""
    process = psutil.Process()
    seen: list[int] = []

    def signatures() -> Iterator[Any]:
        for number in range(count):
            if number % MEASURE_INTERVAL == 0:
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
    with trace(sys.argv[4:]):
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
