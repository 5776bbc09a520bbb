"""Processor time of the server for single calls of scripts, hot and cold.

One task waits and runs after the other, as under a limit that binds: at ``100/s`` each claim takes
one task, settles the one before, and finds that the next has to wait. A call is *hot* right after
another of its kind, and *cold* 4 ms later, when the client has used the processor and its caches:
that is how calls come in at a rate. Server and client share one processor. If valgrind is
installed, the instructions of hot calls are counted, too: these hardly differ from run to run.

With ``--against PATH`` the same calls are made by the package of another checkout, in turns. Each
checkout has a process and a server of its own, see ``call_maker.py``. Time is passed by the caller,
so that rounds are equal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import ROOT


def run(options: Options) -> Result:
    """Let both checkouts take turns."""
    roots = [ROOT, *([options.against] if options.against else [])]
    sides = [_Side(root) for root in roots]
    rounds: list[list[dict[str, float]]] = []
    for number in range(options.pick(15, 5)):
        options.say(f"call_costs: round {number + 1}")
        rounds.append([side.measure() for side in (sides if number % 2 else sides[::-1])])
        if number % 2 == 0:
            rounds[-1].reverse()
    figures = list(_figures(rounds))
    if shutil.which("valgrind"):
        options.say("call_costs: counting instructions")
        figures += _figures([[side.measure("instructions") for side in sides]])
    for side in sides:
        side.end()
    theirs = f"the checkout {options.against}" if options.against else "none"
    return Result(name="call_costs", theirs=theirs, figures=figures)


def _figures(rounds: Sequence[Sequence[dict[str, float]]]) -> Iterator[Figure]:
    for name in rounds[0][0]:
        ours, *theirs = (median(one[name] for one in side) for side in zip(*rounds, strict=True))
        yield Figure(
            name,
            "us" if name.endswith(("hot", "cold")) else "",
            ours,
            theirs[0] if theirs else None,
        )
        if theirs:
            ratios = [mine[name] / other[name] for mine, other in rounds]
            yield Figure("  of theirs", "", median(ratios), rounds=ratios)


class _Side:
    """A process that makes the calls of one checkout, whenever it gets a line."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            (sys.executable, Path(__file__).with_name("call_maker.py")),
            env={**os.environ, "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, what: str = "") -> dict[str, float]:
        """Return the cost of each kind of call."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        stdin.write(f"{what}\n")
        stdin.flush()
        found: dict[str, float] = json.loads(stdout.readline())
        return found

    def end(self) -> None:
        """End the process, and its server with it."""
        self._process.communicate()
