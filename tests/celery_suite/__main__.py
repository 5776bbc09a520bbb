"""``python -m tests.celery_suite``: compares Celery's integration suite with and without limits."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.celery_suite.differences import REASONS, Comparison, compare, disputed_tests
from tests.celery_suite.runs import LIMITS, Run, run_modes
from tests.celery_suite.source import unpack_suite
from tests.workers import ROOT

BUILD = ROOT / "build" / "celery-suite"

#: More rounds of the tests whose outcomes differ, in all modes.
MORE_ROUNDS = 4


def main() -> int:
    """Run, print what differs, and return 1 unless that is what the reasons say."""
    began = time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else 140)
    BUILD.mkdir(parents=True, exist_ok=True)
    suite = unpack_suite(BUILD)
    logs = Path(tempfile.mkdtemp(prefix=time.strftime("%Y-%m-%d-"), dir=BUILD))
    console.print(f"Celery {version('celery')}, logs in {logs} ...")
    rounds = [run_modes(suite, logs / "0")]
    console.print(_totals(rounds[0]))
    tests = disputed_tests(rounds[0])
    if tests:
        rounds += [run_modes(suite, logs / str(n + 1), tests) for n in range(MORE_ROUNDS)]
    comparisons = list(compare(rounds))
    console.print(_differences(comparisons))
    complaints = verdict(comparisons, REASONS)
    for complaint in complaints:
        console.print(complaint)
    console.print(f"{len(complaints)} complaints ({time.monotonic() - began:.0f} s)")
    return 1 if complaints else 0


def verdict(comparisons: Sequence[Comparison], reasons: Mapping[tuple[str, str], str]) -> list[str]:
    """Return a complaint for each difference without a reason, and each reason without one."""
    differing = [(one.mode, one.test) for one in comparisons if one.differs]
    return [
        *(
            f"{mode}: {test} differs for no known reason"
            for mode, test in differing
            if (mode, test) not in reasons
        ),
        *(
            f"{mode}: {test} has a reason, but does not differ"
            for mode, test in reasons
            if (mode, test) not in differing
        ),
    ]


def _totals(runs: Mapping[str, Run]) -> Table:
    table = Table(title="All tests", title_justify="left")
    for name in ("mode", "limit of all tasks", "outcomes", "messages", "times in a line"):
        table.add_column(name)
    for mode, run in runs.items():
        outcomes = _text(Counter(run.outcomes.values()))
        table.add_row(mode, LIMITS[mode] or "none", outcomes, str(run.received), str(run.throttled))
    return table


def _differences(comparisons: Sequence[Comparison]) -> Table:
    table = Table(title="Tests with other outcomes than on plain Celery", title_justify="left")
    for name in ("test", "mode", "outcomes", "on plain Celery", "reason"):
        table.add_column(name, overflow="fold")
    for one in comparisons:
        reason = REASONS.get((one.mode, one.test), "not known") if one.differs else "unstable"
        table.add_row(one.test, one.mode, _text(one.outcomes), _text(one.plain), reason)
    return table


def _text(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())


if __name__ == "__main__":
    sys.exit(main())
