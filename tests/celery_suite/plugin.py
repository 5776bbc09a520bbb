"""pytest plugin for a run of Celery's suite: puts a limit on every task, and records outcomes.

It is loaded into the process of Celery's suite, in which the suite's worker runs as well.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from celery.signals import task_received

from celery_throttle import Throttle, task_throttled

#: Environment variables: the limit, empty for none, and the file of the record.
LIMIT, RECORD = "CELERY_SUITE_LIMIT", "CELERY_SUITE_RECORD"

#: Fixtures of Celery's suite that make apps: the one of its worker, and one for each test.
_APPS = ("celery_session_app", "celery_app")

#: In pytest's words; a test of which a later phase failed has the later outcome.
_OUTCOMES = ("passed", "skipped", "xfailed", "xpassed", "failed", "error")

_signals: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    value = yield
    limit = os.environ[LIMIT]
    if limit and fixturedef.argname in _APPS:
        Throttle(value, {"every": limit}, routes={"*": "every"})
    return value


def pytest_configure() -> None:
    task_received.connect(_count_received)
    task_throttled.connect(_count_throttled)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    outcomes = {
        report.nodeid: outcome
        for outcome in _OUTCOMES
        for report in terminalreporter.getreports(outcome)
    }
    record = {"outcomes": outcomes, **_signals}
    Path(os.environ[RECORD]).write_text(json.dumps(record), encoding="utf-8")


def _count_received(**_: Any) -> None:
    _signals["received"] += 1


def _count_throttled(**_: Any) -> None:
    _signals["throttled"] += 1
