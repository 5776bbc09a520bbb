"""What a fault cost: tasks lost, run twice, started over the limit; and the table of it all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

#: Seconds by which a start may be late after its admission on a machine that is being mistreated.
LATE = 0.25

#: Windows in seconds in which starts are counted against the limit.
WINDOWS = (1.0, 2.0, 5.0, 10.0, 60.0)

#: Seconds before the death of a worker in which what it had started may not be settled yet.
UNSETTLED = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table.

    Attributes:
        fault: what was done.
        times: how often.
        tasks: how many were sent.
        lost: how many of them never started.
        duplicated: starts beyond the first of a task.
        unexplained: of these, those whose earlier start nothing interrupted.
        over: starts beyond what the limit allows, in the fullest window.
        recovered: seconds until tasks with limits started again after the fault; the longest.
    """

    fault: str
    times: int
    tasks: int
    lost: int
    duplicated: int
    unexplained: int
    over: int
    recovered: float

    def row(self) -> list[str]:
        """As text, in the order of :data:`HEAD`."""
        numbers = (self.times, self.tasks, self.lost, self.duplicated, self.unexplained, self.over)
        return [self.fault, *(f"{number:,}" for number in numbers), f"{self.recovered:.1f}"]


HEAD = ("fault", "times", "tasks", "lost", "duplicated", "unexplained", "over", "recovered (s)")


@dataclass(slots=True)
class Faults:
    """When the faults of one run were: times of day in seconds.

    Attributes:
        killed: worker -> when it was killed.
        lost: from when to when a server was out.
    """

    killed: dict[str, float]
    lost: list[tuple[float, float]]

    def explain(self, worker: str, started: float, again: float, lease: float) -> bool:
        """Whether a task that started on a worker may have started again later."""
        if started > self.killed.get(worker, float("inf")) - UNSETTLED:
            return True
        # Nobody knows that it ended, or the lease of its worker runs out.
        return any(
            began - UNSETTLED < again and started < ended + lease for began, ended in self.lost
        )


def judge(
    fault: str,
    sent: Sequence[int],
    starts: Sequence[Mapping[str, Any]],
    faults: Faults,
    *,
    rate: float,
    burst: int = 1,
    slack: int = 0,
    lease: float = 2.0,
    key_of: Callable[[Mapping[str, Any]], Any] = lambda _: None,
) -> Verdict:
    """Judge one run.

    Args:
        fault: what was done.
        sent: numbers of the tasks.
        starts: rows with ``number``, ``worker`` and ``at``.
        faults: when they were.
        rate: units a second, and the burst of the limit.
        burst: see there.
        slack: units that the docs allow besides while the server is lost.
        lease: seconds.
        key_of: returns the key of the limit for which a start counts.
    """
    by_number: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(starts, key=lambda row: row["at"]):
        by_number[row["number"]].append(row)
    unexplained = sum(
        not faults.explain(first["worker"], first["at"], second["at"], lease)
        for rows in by_number.values()
        for first, second in pairwise(rows)
    )
    by_key: dict[Any, list[float]] = defaultdict(list)
    for row in starts:
        by_key[key_of(row)].append(row["at"])
    times = sorted(row["at"] for row in starts)
    ends = [*faults.killed.values(), *(end for _, end in faults.lost)]
    return Verdict(
        fault,
        times=len(faults.killed) + len(faults.lost),
        tasks=len(sent),
        lost=len(set(sent) - set(by_number)),
        duplicated=len(starts) - len(by_number),
        unexplained=unexplained,
        over=max(
            _over(sorted(of_key), window, rate, burst + slack)
            for of_key in by_key.values()
            for window in WINDOWS
        ),
        recovered=max((_next(times, end) for end in ends), default=0.0),
    )


def _over(times: Sequence[float], window: float, rate: float, burst: int) -> int:
    """Starts beyond the limit in the fullest window."""
    fullest, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] > window:
            first += 1
        fullest = max(fullest, last - first + 1)
    return max(0, fullest - int(burst + rate * (window + LATE)))


def _next(times: Iterable[float], end: float) -> float:
    """Seconds until the next start; 0.0 if all had started."""
    return next((at - end for at in times if at >= end), 0.0)


def table(verdicts: Iterable[Verdict]) -> str:
    """As the suite prints it."""
    rows = [HEAD, *(verdict.row() for verdict in verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for row in rows:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *others)))
    return "\n".join(lines)
