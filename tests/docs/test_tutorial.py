"""The tutorial, step by step, with its files, two workers, and the output that it shows."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import pages
from tests.programs import run_python, search_path
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

PAGE = pages.read("tutorial.md")
BLOCKS = re.compile(r"^ *```(python|console)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)

#: What a command prints differs in these from run to run.
VARIABLE = [
    (r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID"),
    (r"\b[\w.-]+@[\w.-]+", "AUTHOR"),
    (r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", "TIME"),  # a date, if it is another day
    (r"\d+ min( \d+ s)?|[\d.,]+ s\b", "DURATION"),
    (r"\d[\d,.]*(st|nd|rd|th)?\b", "NUMBER"),
    (r"\s+", " "),
]

#: Commands whose output may lag behind: workers report to the server now and then.
READERS = re.compile(r"throttle (ls|why|fanout show) ?")

#: Tasks of the fan-out; the page has 10,000.
TASKS = 6000

#: Tasks of send.py; the page has 100, which a slow machine starts before all its commands have run.
FIRST_TASKS = 500

pytestmark = [pytest.mark.workers, pytest.mark.thorough, pytest.mark.timeout(600)]


def similar(output: str) -> str:
    """Return the output without what differs from run to run."""
    for pattern, word in VARIABLE:
        output = re.sub(pattern, word, output)
    return output.strip()


class Shell:
    """Runs the commands of the page, in a directory with its files."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self._url = url
        self._ids: dict[str, str] = {}  # of the page, and of this run
        self.env = {
            "PYTHONPATH": search_path(directory),
            "TZ": "UTC",
            "COLUMNS": "200",
        }

    def write(self, source: str) -> None:
        """Write a file of the page."""
        found = re.match(r"# (\S+)\n", source)
        assert found, source
        for of_page, of_run in (
            ("redis://localhost:6379/0", self._url),
            ("10_000", str(TASKS)),
            ("range(100)", f"range({FIRST_TASKS})"),
        ):
            source = source.replace(of_page, of_run)
        (self.directory / found[1]).write_text(source, encoding="utf-8")

    def run(self, command: str, shown: str) -> None:
        """Run a command of the page, and compare what it prints with what the page shows."""
        for id_of_page, id_of_run in self._ids.items():
            command = command.replace(id_of_page, id_of_run)
        command = command.replace('"20/s"', '"2/s"')  # or no task may wait any more on a slow day
        deadline = time.monotonic() + (60 if READERS.search(command) else 0)
        while True:
            output = self._output(command)
            if not shown or similar(output) == similar(shown):
                break
            assert time.monotonic() < deadline, f"{command}\n{output}\nthe page shows:\n{shown}"
            time.sleep(0.5)
        self._ids |= dict(zip(ids(shown), ids(output), strict=False))

    def _output(self, command: str) -> str:
        program, *words = shlex.split(command)
        module = [] if program == "python" else ["-m", program]
        return run_python(*module, *words, env=self.env, cwd=self.directory)


def ids(output: str) -> list[str]:
    return re.findall(VARIABLE[0][0], output)


def console(source: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with its output."""
    commands = re.split(r"^ *\$ ", source, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (one.partition("\n") for one in commands)]


def steps(shell: Shell, start: Callable[[], Worker]) -> list[Worker]:
    """Take all steps of the page from its first file to its last command; return its workers."""
    workers: list[Worker] = []
    tutorial, _, _ = PAGE.partition("## What next")
    for language, source in BLOCKS.findall(tutorial):
        if language == "python":
            shell.write(source)
            continue
        for command, shown in console(source):
            if command.startswith("celery -A shop worker"):
                workers.append(start())
            elif re.match(r"python (?!-m)|celery ", command):
                shell.run(command, shown)
    return workers


def test_the_tutorial(redis_url: str, start_worker: StartWorker, tmp_path: Path) -> None:
    shell = Shell(tmp_path, redis_url)
    workers = steps(shell, lambda: start_worker("shop", redis_url, env=shell.env))
    assert len(workers) == 2

    def mails() -> int:
        return sum(len(re.findall(r"mail to customer \d+", worker.log())) for worker in workers)

    # Each task of send.py and of newsletter.py ran once.
    wait_until(lambda: mails() >= FIRST_TASKS + TASKS, "the end of all mails", seconds=200)
    assert mails() == FIRST_TASKS + TASKS
