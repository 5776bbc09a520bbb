"""Paired rounds: the same number of tasks for each of several workers, in small turns.

All workers are up all the time and wait for tasks in queues of their own. A round gives each of
them the same number of tasks in turns of 200, in an order that is reversed from turn to turn, so
what else the machine does, and however it changes its speed, falls on all sides alike.

A turn is put into the broker in one command. Its time runs from the mark of the 40th task to the
mark of the last one. The marks are left by the same code on every side: the first line of the
task's body, or the signal that a task was parked. Sides are compared turn by turn, and of the
ratios in a round the median counts, which a turn that was disturbed does not move.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.stage import Stage, Worker

TURN = 200
WARM = 40


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison: a worker, its queue, and the tasks it gets."""

    worker: Worker
    queue: str
    task: str
    keys: Sequence[str] = ()
    kind: str = "starts"


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a side was in a round.

    Attributes:
        rates: tasks a second in each turn.
        cost: seconds of a processor that the worker's main process spent on a task.
    """

    rates: Sequence[float]
    cost: float

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return median(self.rates)

    def beside(self, other: Pace) -> float:
        """How many times as fast as the other."""
        return median(mine / its for mine, its in zip(self.rates, other.rates, strict=True))


def both(one: Pace, other: Pace) -> Pace:
    """The mean of two sides that do the same."""
    rates = [(mine + its) / 2 for mine, its in zip(one.rates, other.rates, strict=True)]
    return Pace(rates, (one.cost + other.cost) / 2)


def one_round(stage: Stage, sides: Sequence[Side], tasks: int) -> list[Pace]:
    """Give each side that many tasks."""
    rates: list[list[float]] = [[] for _ in sides]
    spent = [0.0] * len(sides)
    for number in range(tasks // TURN):
        order = list(enumerate(sides))
        for place, side in reversed(order) if number % 2 else order:
            before = side.worker.processor_seconds()
            rates[place].append(_turn(stage, side, number))
            spent[place] += side.worker.processor_seconds() - before
    counted = tasks // TURN * TURN
    return [Pace(turns, cost / counted) for turns, cost in zip(rates, spent, strict=True)]


def _turn(stage: Stage, side: Side, number: int) -> float:
    # Keys go on where the last turn ended.
    first = number * TURN % max(1, len(side.keys))
    keys = [*side.keys[first:], *side.keys[:first]]
    messages = stage.compose(side.task, TURN, side.queue, keys)
    before = side.worker.count(side.kind)
    stage.push(messages, side.queue)
    side.worker.wait_for(before + TURN, side.kind)
    # What a worker puts off until it is idle is no part of the next one's turn.
    time.sleep(0.05)
    marks = side.worker.marks(side.kind, skip=before)
    return (TURN - 1 - WARM) / (marks[-1].time - marks[WARM].time)
