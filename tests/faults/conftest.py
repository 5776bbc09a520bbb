"""The table of verdicts, printed at the end; and servers that keep what they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.verdict import Verdict, table
from tests.servers.server import Server, redis_command


@pytest.fixture
def conclude(record_property: Callable[[str, object], None]) -> Callable[[Verdict], None]:
    """Puts a verdict into the table, and fails where it breaks a law."""

    def conclude(verdict: Verdict) -> None:
        record_property("verdict", asdict(verdict))
        assert verdict.lost == 0, verdict
        assert verdict.unexplained == 0, verdict
        assert verdict.over == 0, verdict

    return conclude


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports: Any = (report for some in terminalreporter.stats.values() for report in some)
    ended = [report for report in reports if getattr(report, "when", "") == "call"]
    verdicts = [
        Verdict(**value)
        for report in sorted(ended, key=lambda report: report.nodeid)
        for name, value in report.user_properties
        if name == "verdict"
    ]
    if verdicts:
        terminalreporter.section("faults")
        terminalreporter.write_line(table(verdicts))


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    """A Redis that has written each call to disk before it answers."""
    command = redis_command()
    if command is None:
        pytest.skip("redis-server is not installed")
    server = Server(command, tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.check_keys()
    server.stop()
