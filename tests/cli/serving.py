"""A command that serves pages until it is stopped, as a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.programs import ROOT


@contextmanager
def serving_process(
    command: Sequence[str], url: str, says: str, **env: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command; yield its process and the address at the end of the line that it prints.

    ``url``: of the broker; ``says``: the beginning of the line.
    """
    process = subprocess.Popen(
        [*command, "--port", "0"],
        env={**os.environ, "CELERY_BROKER_URL": url, **env},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1])
        assert line.startswith(says)
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()
