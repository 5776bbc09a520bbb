"""Ties a command to the life of its parent. A script of its own, which imports nothing of ours.

``python tether.py <parent's pid> <command>...`` asks the kernel for SIGKILL when the parent dies
and then becomes the command. A step of its own is safe where ``preexec_fn`` is not: in a process
with threads. Where the kernel cannot do that it stays beside the command and watches the parent.
The kernel's "parent" is the thread that made the child, so make one from a lasting thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1

#: Seconds between two looks at the parent, where the kernel does not tell.
LOOK = 0.2


def become(parent: int, command: list[str]) -> None:
    """Let the kernel watch, and become the command."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:  # else it died before the kernel was told
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted


def watch(parent: int, command: list[str]) -> int:
    """Run the command, and kill it with all of this process group when the parent is gone."""
    child = subprocess.Popen(command)
    while child.poll() is None and os.getppid() == parent:
        time.sleep(LOOK)
    if child.returncode is None:
        os.killpg(0, signal.SIGKILL)
    return child.returncode


def main() -> None:
    """Tie the command; the exit code is the command's."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        become(int(parent), command)
        sys.exit(1)
    sys.exit(watch(int(parent), command))


if __name__ == "__main__":
    main()
