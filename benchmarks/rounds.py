"""Paired rounds: the same number of tasks for each of several workers, in small batches.

All workers run all the time and wait for tasks in queues of their own. A round gives each of them
the same number of tasks in batches of 200, in alternating order, so that other load of the machine,
and changes of its speed, affect all sides alike.

A batch is sent to the broker in one command. Its time runs from the mark of the 40th task to the
mark of the last one. The same code writes the marks on every side, the first line of the task's
body. Sides are compared batch by batch, and the median of the ratios in a round counts, which one
disturbed batch does not move.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.stage import Stage, Worker

BATCH_SIZE = 200
WARM_UP_TASKS = 40


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison: a worker, its queue, and the tasks it gets."""

    worker: Worker
    queue: str
    task: str
    keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a side in a round.

    Attributes:
        rates: tasks per second in each batch.
        cost: processor seconds of the worker's main process per task.
    """

    rates: Sequence[float]
    cost: float

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return median(self.rates)

    def beside(self, other: Pace) -> float:
        """Return the ratio of its rate to that of the other."""
        return median(mine / its for mine, its in zip(self.rates, other.rates, strict=True))


def both(one: Pace, other: Pace) -> Pace:
    """Return the mean of two equal sides."""
    rates = [(mine + its) / 2 for mine, its in zip(one.rates, other.rates, strict=True)]
    return Pace(rates, (one.cost + other.cost) / 2)


def one_round(stage: Stage, sides: Sequence[Side], tasks: int) -> list[Pace]:
    """Give each side this number of tasks."""
    rates: list[list[float]] = [[] for _ in sides]
    spent = [0.0] * len(sides)
    for number in range(tasks // BATCH_SIZE):
        order = list(enumerate(sides))
        for place, side in reversed(order) if number % 2 else order:
            before = side.worker.processor_seconds()
            rates[place].append(_run_batch(stage, side, number))
            spent[place] += side.worker.processor_seconds() - before
    counted = tasks // BATCH_SIZE * BATCH_SIZE
    return [Pace(turns, cost / counted) for turns, cost in zip(rates, spent, strict=True)]


def _run_batch(stage: Stage, side: Side, number: int) -> float:
    # Keys continue where the last batch ended.
    first = number * BATCH_SIZE % max(1, len(side.keys))
    keys = [*side.keys[first:], *side.keys[:first]]
    messages = stage.compose(side.task, BATCH_SIZE, side.queue, keys)
    before = side.worker.count()
    stage.push(messages, side.queue)
    side.worker.wait_for(before + BATCH_SIZE)
    # Work that a worker defers until it is idle must not fall into the next batch.
    time.sleep(0.05)
    marks = side.worker.marks(skip=before)
    return (BATCH_SIZE - 1 - WARM_UP_TASKS) / (marks[-1].time - marks[WARM_UP_TASKS].time)
