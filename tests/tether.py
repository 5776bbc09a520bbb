"""Processes that cannot outlive the tests, not even tests that are killed.

Run as a script, this file asks the kernel for SIGKILL when its parent dies and then becomes the
command it was given. A step of its own is safe where `preexec_fn` is not: in a process with
threads. The kernel's "parent" is the thread that made the child, so make one from a lasting thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


class Tethered:
    """A command tied to this process, in a group of its own, with its output in a file."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._name = command[0]
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", __file__, str(os.getpid()), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Polls `ready`; a process that ended or took too long is an error that shows its log."""
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
        """Kills the whole group, which may outlive its first process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the kernel was told
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 -- no shell is wanted


if __name__ == "__main__":
    main()
