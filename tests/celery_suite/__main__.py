"""``python -m tests.celery_suite``: compares Celery's integration suite with and without limits."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.celery_suite.differences import Comparison, compare, complaints, disputed_tests
from tests.celery_suite.reasons import REASONS
from tests.celery_suite.runs import LIMITS, Run, read_modes, run_modes
from tests.celery_suite.source import unpack_suite
from tests.programs import ROOT

BUILD = ROOT / "build" / "celery-suite"

#: How often tests run whose outcomes differ, or are known to.
ROUNDS = 5


def main() -> int:
    """Run, print what differs, and return 1 unless that is what the reasons say."""
    parser = argparse.ArgumentParser(prog="python -m tests.celery_suite", description=__doc__)
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help="run nothing, judge an earlier run"
    )
    folder = parser.parse_args().records
    # The ids of tests have parts in brackets, which are not markup.
    console = Console(width=None if sys.stdout.isatty() else 140, markup=False)
    if folder is None:
        began = time.monotonic()
        BUILD.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y-%m-%d-"), dir=BUILD))
        console.print(f"Celery {version('celery')}, logs and records in {folder} ...")
        _run_rounds(folder)
        console.print(f"{(time.monotonic() - began) / 60:.0f} minutes")
    return _judge(folder, console)


def _run_rounds(folder: Path) -> None:
    suite = unpack_suite(BUILD)
    run_modes(suite, folder / "0")
    tests = {*disputed_tests(read_modes(folder / "0")), *(test for _, test in REASONS)}
    if tests:
        for number in range(1, ROUNDS):
            run_modes(suite, folder / str(number), sorted(tests))


def _judge(folder: Path, console: Console) -> int:
    rounds = [read_modes(path) for path in sorted(folder.iterdir())]
    console.print(_totals(rounds[0]))
    comparisons = list(compare(rounds))
    console.print(_differences(comparisons))
    found = complaints(comparisons, REASONS)
    for complaint in found:
        console.print(complaint)
    return 1 if found else 0


def _totals(runs: Mapping[str, Run]) -> Table:
    table = Table(title="All tests", title_justify="left")
    for name in ("mode", "limit of all tasks", "outcomes", "tasks", "times in a line"):
        table.add_column(name)
    for mode, run in runs.items():
        outcomes = _text(Counter(run.outcomes.values()))
        limit = LIMITS[mode] or "none"
        table.add_row(mode, limit, outcomes, str(run.received), str(run.throttled))
    return table


def _differences(comparisons: Sequence[Comparison]) -> Table:
    table = Table(title="Tests with other outcomes than on plain Celery", title_justify="left")
    for name in ("test", "mode", "outcomes", "on plain Celery", "reason"):
        table.add_column(name, overflow="fold")
    for one in comparisons:
        reason = REASONS.get(one.place, "not known" if one.differs else "unstable")
        table.add_row(one.test, one.mode, _text(one.outcomes), _text(one.plain), reason)
    return table


def _text(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())


if __name__ == "__main__":
    sys.exit(main())
