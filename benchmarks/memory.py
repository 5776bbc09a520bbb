"""What waiting tasks cost: memory of a worker, and bytes in Redis, at 1,000 and 100,000 of them.

A real worker parks the tasks on a limit of 1/h; then the resident size of its main process is read,
and by how much ``used_memory`` of the broker and of the limits' server together has grown since the
worker was ready. Theirs is the retry recipe (``apps/recipe.py``), whose tasks wait in the worker
with a countdown; a worker takes so long to retry them that it gets fewer. Beside the bytes in Redis
stands the size of the message that the broker had: what Celery itself made of the task.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import QUEUE, Stage, Worker, wait_until
from celery_throttle.keys import Keys

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes with some tasks waiting; ``waiting`` tells how many."""

    waiting: int
    worker: int
    server: float


def run(options: Options) -> Result:
    """Fill up step by step, ours first."""
    few, many = 1_000, options.pick(100_000, 10_000)
    their_many = options.pick(10_000, 3_000)
    ours = _sizes("ours", [few, many], options)
    theirs = _sizes("recipe", [few, their_many], options)
    with Stage() as stage:
        [(_, message)] = stage.compose("limited", 1)
    figures = [
        Figure(f"worker, {few:,} waiting", "MB", ours[0].worker, theirs[0].worker),
        Figure(f"worker, {many:,} waiting (theirs: {their_many:,})", "MB", ours[1].worker, theirs[1].worker),
    ]
    return Result("memory", "the retry recipe", figures)
