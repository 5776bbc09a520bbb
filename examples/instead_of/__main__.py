"""Runs four throttles of real projects, and celery_throttle in their place, under the same load.

Each project has a folder. `before.py` has the pattern by which the project limits its tasks, in our
words and without what does not matter here; `after.py` does the same with celery_throttle. Both run
on two workers of eight threads, one after the other.

    CELERY_BROKER_URL=redis://localhost:6379/0 python -m examples.instead_of [--tasks 200]
"""

from __future__ import annotations

import argparse
import importlib
import io
import subprocess
import sys
import time
import tokenize
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.instead_of.shared import client, record_key

WORKERS, THREADS, SECONDS = 2, 8, 180

#: Project -> the arguments of its tasks, which repeat.
LOADS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "courtlistener": ({"court": "ca9"},),
    "pass_culture": ({"contact": 1},),
    "galaxy": ({"user": "ann"}, {"user": "bob"}, {}),
    "posthog": ({"team": 1}, {"team": 7}),
}


@dataclass(frozen=True)
class Result:
    """What the tasks of one side did."""

    tasks: int
    failed: int  #: tasks that ended without running
    messages: int  #: sent to the broker
    seconds: float  #: from the first start to the last one
    fullest: Mapping[str, int]  #: key -> the most starts in one second, or runs at once
    lines: int  #: of code


def measure(project: str, side: str, tasks: int) -> Result:
    """Run tasks of one side."""
    module = f"examples.instead_of.{project}.{side}"
    work = importlib.import_module(module).work
    name = work.app.main
    client.delete(*(record_key(name, what) for what in ("messages", "runs", "ended", "failed")))
    load = LOADS[project]
    for number in range(tasks):
        work.apply_async(kwargs=load[number % len(load)])
    with workers(module, name):
        began = time.monotonic()
        while count(name, "ended") < tasks:
            if time.monotonic() - began > SECONDS:
                raise TimeoutError(f"{name}: {count(name, 'ended')} of {tasks} tasks ended")
            time.sleep(0.05)
    rows: list[bytes] = client.lrange(record_key(name, "runs"), 0, -1)
    runs = [
        (float(start), float(end), key)
        for start, end, key in (row.decode().split() for row in rows)
    ]
    starts = [start for start, _, _ in runs]
    return Result(
        tasks,
        count(name, "failed"),
        count(name, "messages"),
        max(starts) - min(starts),
        fullest(runs, at_once=project == "posthog"),
        lines_of_code(Path(__file__).parent / project / f"{side}.py"),
    )


def count(name: str, what: str) -> int:
    """Return a number that was recorded."""
    return int(client.get(record_key(name, what)) or 0)


@contextmanager
def workers(module: str, name: str) -> Generator[None, None, None]:
    """Run the workers of an app."""
    command = (
        *(sys.executable, "-m", "celery", "-A", module, "worker", "--loglevel", "ERROR"),
        *("--pool", "threads", "--concurrency", str(THREADS)),
        *("--without-mingle", "--without-gossip", "--hostname"),
    )
    names, silent = (f"{name}-{number}@localhost" for number in range(WORKERS)), subprocess.DEVNULL
    processes = [
        subprocess.Popen((*command, each), stdout=silent, stderr=silent)  # noqa: S603  # our words
        for each in names
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def fullest(runs: list[tuple[float, float, str]], *, at_once: bool) -> dict[str, int]:
    """Return the most starts in any second, or the most runs at once, of each key."""
    by_key: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for start, end, key in runs:
        by_key[key].append((start, end if at_once else start + 1))
    return {
        key: max(sum(start <= each < end for start, end in spans) for each, _ in spans)
        for key, spans in sorted(by_key.items())
    }


def lines_of_code(path: Path) -> int:
    """Return the number of lines with code, without docstrings and comments."""
    no_code = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    last = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        is_docstring = token.type == tokenize.STRING and last in no_code
        if token.type not in (*no_code, tokenize.ENDMARKER) and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        last = token.type
    return len(lines)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m examples.instead_of")
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help=", ".join(LOADS))
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    print(
        "| throttle | starts in the fullest second | messages per task | failed | seconds | lines |"
    )
    print("|---|---|---|---|---|---|")
    for project in options.projects or LOADS:
        for side in ("before", "after"):
            found = measure(project, side, options.tasks)
            most = ", ".join(f"{key}: {starts}" for key, starts in found.fullest.items())
            messages = f"{found.messages / found.tasks:.1f}"
            cells = (f"{project}, {side}", most, messages, found.failed, f"{found.seconds:.1f}")
            print("|", *(f"{cell} |" for cell in (*cells, found.lines)), flush=True)


if __name__ == "__main__":
    main()
