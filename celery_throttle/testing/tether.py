"""Kills a command when its parent dies. A script, which imports nothing of this package.

``python tether.py <parent's pid> <command>...`` asks the kernel for SIGKILL when the parent dies
and then becomes the command. Unlike ``preexec_fn``, that is safe in a process with threads. If the
kernel cannot do it, the script stays and polls the parent. For the kernel the parent is the thread
that started the child, so start it from a thread that lasts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1

#: Seconds between two polls of the parent.
POLL_SECONDS = 0.2


def watch(parent: int, command: list[str]) -> int:
    """Run the command. When the parent is gone, kill this process group."""
    child = subprocess.Popen(command)
    while child.poll() is None and os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    if child.returncode is None:
        os.killpg(0, signal.SIGKILL)
    return child.returncode


def main() -> None:
    """Run the command and exit with its code."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # otherwise it died before the call of prctl
            os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
        sys.exit(1)
    sys.exit(watch(parent, command))


if __name__ == "__main__":
    main()
