"""The tests of the installed Celery, which its wheel does not have."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path


def unpack_suite(cache: Path) -> Path:
    """Return the folder that has ``t/integration`` of the installed Celery.

    Only the tests and their pytest settings are unpacked: they test the Celery that is installed.
    """
    name = f"celery-{version('celery')}"
    archive = cache / f"{name}.tar.gz"
    if not archive.exists():
        _download(name, cache)
    wanted = (f"{name}/t/", f"{name}/pyproject.toml")
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.name.startswith(wanted)]
        tar.extractall(cache, members, filter="data")
    return cache / name


def _download(name: str, cache: Path) -> None:
    """Pip compares the file with the hash that the index states."""
    source = ("--no-deps", "--no-binary", "celery", name.replace("-", "=="))
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", cache, *source)
    subprocess.run(command, check=True)
