"""Python programs, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: The directory of the repository.
ROOT = Path(__file__).parent.parent


def run_python(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 200,
) -> str:
    """Return what Python prints with these arguments; fail if it exits with an error.

    Args:
        *arguments: of the interpreter.
        env: variables beside those of this process; the default of PYTHONPATH is `search_path()`.
        cwd: its directory, by default that of this process.
        seconds: that it may take.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": search_path(), **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def search_path(*directories: Path) -> str:
    """Return the PYTHONPATH of these directories, the repository, and this process."""
    own = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([*map(str, directories), str(ROOT), *own])
