"""Processes that cannot outlive the tests, not even tests that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from celery_throttle.testing.server import TETHER


class Child(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


Start = Callable[[Sequence[str | Path], Path, Mapping[str, str], Path], Child]


def start(command: Sequence[str | Path], log: Path, env: Mapping[str, str], cwd: Path) -> Child:
    """Start a command tied to this process."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", str(TETHER), str(os.getpid()), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )


class Tethered:
    """A command tied to this process, in a group of its own, with its output in a file.

    Args:
        start: how it is started.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start: Start = start,
    ) -> None:
        self._name = command[0]
        self._log = log
        self.process = start(command, log, {**os.environ, **(env or {})}, cwd or Path.cwd())

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Poll `ready`. Raise an error with the log if the process ends or takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            ended = self.process.poll()
            if ended is None and time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            self.end()
            why = f"is not ready after {seconds} s" if ended is None else f"ended with {ended}"
            raise RuntimeError(f"{self._name} {why}; its log:\n{self.log()}")

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """Kill the whole group, which may outlive its first process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
