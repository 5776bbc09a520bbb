"""Runs Celery's suite in processes of its own, each with a server of its own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.celery_suite.plugin import LIMIT, RECORD
from tests.programs import ROOT
from tests.servers.server import Server, assert_nothing_left_behind, valkey_command
from tests.tether import Tethered

#: The mode of plain Celery, with no limit.
PLAIN = "plain"

#: Each mode with the limit that all tasks share.
LIMITS = {
    PLAIN: "",
    "never binds": "1000000/s burst 1000000",
    "binds": "20/s",
}

_PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "--tb", "short", "--timeout", "300"),
    *("-p", "celery.contrib.pytest", "-p", "pytest_timeout", "-p", "tests.celery_suite.plugin"),
    *("-p", "no:cacheprovider"),
    # Needs an account with Azure.
    *("--ignore", "t/integration/test_backend.py"),
)

#: Seconds after which a run is given up; one of all tests takes half of that.
_MAX_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Run:
    """The record of one run.

    Attributes:
        outcomes: of each test by its id, in pytest's words.
        received: tasks that the worker has received.
        throttled: how often a task was refused, and joined its line.
    """

    outcomes: Mapping[str, str]
    received: int = 0
    throttled: int = 0


def run_modes(suite: Path, folder: Path, tests: Sequence[str] = ("t/integration",)) -> None:
    """Run tests in each mode. Logs and records go to a new folder.

    The modes run side by side: their tests mostly wait.
    """
    folder.mkdir()
    with ThreadPoolExecutor(len(LIMITS)) as executor:
        list(executor.map(lambda mode: _run(mode, suite, folder, tests), LIMITS))


def read_modes(folder: Path) -> dict[str, Run]:
    """The records that :func:`run_modes` has left in a folder, by mode."""
    return {mode: Run(**json.loads((folder / f"{mode}.json").read_text())) for mode in LIMITS}


def _run(mode: str, suite: Path, folder: Path, tests: Sequence[str]) -> None:
    log, record = (folder / f"{mode}.{suffix}" for suffix in ("log", "json"))
    with tempfile.TemporaryDirectory(prefix="celery-suite-") as name:
        server = Server(valkey_command(), Path(name))
        env = {**_environment(server), LIMIT: LIMITS[mode], RECORD: str(record)}
        pytest = Tethered((*_PYTEST, "--rootdir", suite, *tests), log, env, suite)
        try:
            pytest.process.wait(_MAX_SECONDS)
            if not record.exists():
                raise RuntimeError(f"a run has ended without a record; its log is {log}")
            with server.client() as client:
                assert_nothing_left_behind(client)
        finally:
            pytest.end()
            server.stop()


def _environment(server: Server) -> dict[str, str]:
    """Where the suite finds broker, results, the command ``celery``, and our plugin."""
    commands = (str(Path(sys.executable).parent), os.environ["PATH"])
    return {
        "TEST_BROKER": server.url,
        "TEST_BACKEND": server.url,
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": str(server.port),
        "PATH": os.pathsep.join(commands),
        "PYTHONPATH": str(ROOT),
        # Plugins that happen to be installed change nothing. One of them, pytest-rerunfailures,
        # would repeat most tests that fail, up to five times, and so hide rare failures.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
