"""Processes that cannot outlive this one, not even if it is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

TETHER = Path(__file__).with_name("tether.py")

#: Characters at the end of a log that an error shows.
LOG_CHARACTERS = 2000


class ProcessError(click.ClickException):
    """A process did not start, or has ended; the message is for the user."""


class Process:
    """A command in a process group of its own, with log and temporary files in ``directory``.

    Ctrl-C does not reach it: the terminal signals only the group of this process, which ends it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(TETHER), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**(os.environ if env is None else env), "TMPDIR": str(directory)},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise ProcessError, with the end of the log, if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise ProcessError(f"the {self._name} ended with {code}; its log:\n{self.log()}")

    def log(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:].strip()

    def end(self) -> None:
        """Kill the whole group, which may outlive its first process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
