"""Paired rounds: the same number of tasks for each of several workers, in small turns.

All workers are up all the time and wait for tasks in queues of their own. A round gives each of
them the same number of tasks in turns of 500, in an order that is reversed from turn to turn, so
what else the machine does, and however it changes its speed, falls on all sides alike.

A turn is put into the broker in one command. Its time runs from the mark of the 50th task to the
mark of the last one. The marks are left by the same code on every side: the first line of the
task's body, or the signal that a task was parked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.stage import Stage, Worker

import os
TURN = int(os.environ.get("TURN","500"))
WARM = 50


@dataclass(slots=True)
class Side:
    """One side of the comparison: a worker, its queue, and the tasks it gets."""

    worker: Worker
    queue: str
    task: str
    keys: Sequence[str] = ()
    kind: str = "starts"
    given: int = 0

    def turn(self, stage: Stage) -> float:
        """Run one turn; gives its seconds."""
        # Keys go on where the last turn ended.
        start = self.given % max(1, len(self.keys))
        keys = [*self.keys[start:], *self.keys[:start]]
        messages = stage.compose(self.task, TURN, self.queue, keys[:TURN])
        before = self.worker.count(self.kind)
        stage.push(messages, self.queue)
        self.worker.wait_for(before + TURN, self.kind)
        marks = self.worker.marks(self.kind, skip=before)
        self.given += TURN
        # What a worker puts off until it is idle is part of the price, and no part of the others'.
        time.sleep(0.05)
        return marks[-1].time - marks[WARM].time


def one_round(stage: Stage, sides: Sequence[Side], tasks: int) -> list[float]:
    """Give each side that many tasks; gives the tasks a second of each."""
    seconds = [0.0] * len(sides)
    for number in range(tasks // TURN):
        order = list(enumerate(sides))
        for place, side in reversed(order) if number % 2 else order:
            seconds[place] += side.turn(stage)
    counted = tasks // TURN * (TURN - 1 - WARM)
    return [counted / one for one in seconds]
